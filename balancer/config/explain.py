"""The table [explain] of the configuration: why requests go where they go.

Rule of this file: as in `sections.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from balancer.config.sections import Section

FieldName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'+.^_`|~-]{1,64}$")]


class ExplainConfig(Section):
    """Off unless a client may ask, or all picks are explained; POST /-/explain does that for a while."""

    enabled: bool = Field(default=False, description="explain every pick, and count reasons in the metrics")
    header: FieldName | None = Field(
        default=None, description="a request with this field is told why it went where it went"
    )
    trust: Literal["proxies", "everybody"] = Field(
        default="proxies", description="whose field counts: that of trusted_proxies, or of everybody"
    )
    answer: FieldName = Field(default="X-Picked", description="the field of the response that says so")
