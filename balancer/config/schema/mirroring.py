"""The key `mirror` of a route: copies of a share of its requests go to another cluster."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from balancer.config.schema.section import Name, Section

Method = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z-]{0,31}$")]


class MirrorConfig(Section):
    """A mirror: its cluster, and which requests are copied to it."""

    cluster: Name = Field(
        description="name | cluster that gets copies of the route's requests; see [Mirroring](#mirroring)"
    )
    share: float = Field(
        gt=0, le=1, description="0–1 | share of the requests that are copied, drawn for each; more than 0"
    )
    methods: tuple[Method, ...] = Field(
        default=("GET", "HEAD", "OPTIONS"),
        min_length=1,
        description="list of methods | methods of requests that are copied",
    )
    body: int = Field(
        default=65_536,
        ge=0,
        le=1 << 26,
        description="bytes | longest body that is copied",
    )
    max_in_flight: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="copies at a time, per process",
    )

    @model_validator(mode="after")
    def _may_be_copied(self) -> Self:
        if "CONNECT" in self.methods:
            raise ValueError("methods: CONNECT opens a tunnel, which cannot be copied")
        return self
