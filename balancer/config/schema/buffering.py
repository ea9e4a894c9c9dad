"""The table [buffering] of the configuration: bodies that are kept whole for slow clients."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from balancer.config.schema.section import Section


class BufferingLimits(Section):
    """Buffering, so that slow clients do not occupy worker connections; off by default."""

    request: int = Field(
        default=0,
        ge=0,
        le=1 << 26,
        description="bytes | largest request body that is received whole before an endpoint is asked, at most 64 MiB;"
        " 0: off; see [Buffering](#buffering)",
    )
    response: int = Field(
        default=0,
        ge=0,
        le=1 << 26,
        description="bytes | part of a response that is kept for a client that reads slowly, at most 64 MiB; 0: off",
    )
    total: int = Field(
        default=67_108_864,
        ge=1024,
        le=1 << 40,
        description="bytes | bound on everything that a process keeps; beyond it bodies are streamed",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name, size in (("request", self.request), ("response", self.response)):
            if size > self.total:
                raise ValueError(f"total: must not be below {name} ({size}), got {self.total}")
        return self
