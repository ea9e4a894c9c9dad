"""The table [explain] of the configuration: explanations of picks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from balancer.config.schema.section import Section

FieldName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'+.^_`|~-]{1,64}$")]


class ExplainConfig(Section):
    """Explanations of picks; off unless `enabled` or `header` is set. POST /-/explain turns them on for a while."""

    enabled: bool = Field(
        default=False, description="explain every pick, and count the reasons in the metrics"
    )
    header: FieldName | None = Field(
        default=None, description="field of a request that asks for an explanation in the response"
    )
    trust: Literal["proxies", "all"] = Field(
        default="proxies", description="clients from which the field is accepted: trusted_proxies, or all"
    )
    response_header: FieldName = Field(
        default="X-Picked", description="field of the response with the explanation"
    )
