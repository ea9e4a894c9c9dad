"""The table [explain] of the configuration: explanations of picks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from balancer.config.sections import Section

FieldName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'+.^_`|~-]{1,64}$")]


class ExplainConfig(Section):
    """Explanations of picks; off unless `enabled` or `header` is set. POST /-/explain turns them on for a while."""

    enabled: bool = Field(default=False, description="explain every pick, and count reasons in the metrics")
    header: FieldName | None = Field(
        default=None, description="a request with this field is told why it went where it went"
    )
    trust: Literal["proxies", "everybody"] = Field(
        default="proxies", description="whose field counts: that of trusted_proxies, or of everybody"
    )
    answer: FieldName = Field(default="X-Picked", description="the field of the response that says so")
