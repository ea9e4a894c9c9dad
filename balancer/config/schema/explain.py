"""The table [explain] of the configuration: explanations of picks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from balancer.config.schema.section import Section

FieldName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'+.^_`|~-]{1,64}$")]


class ExplainConfig(Section):
    """Explanations of picks; off unless `enabled` or `header` is set. POST /-/explain turns them on for a while."""

    enabled: bool = Field(
        default=False,
        description="explanation of every pick, with counters by reason in the metrics; else `POST /-/explain` turns "
        "it on for a while; see [Live](live.md)",
    )
    header: FieldName | None = Field(
        default=None,
        description="name of a field | field of a request that asks for an explanation in its response",
    )
    trust: Literal["proxies", "all"] = Field(
        default="proxies",
        description="senders whose field counts: `proxies`, those of `trusted_proxies`, or `all`",
    )
    response_header: FieldName = Field(
        default="X-Picked", description="name of a field | field of the response with the explanation"
    )
