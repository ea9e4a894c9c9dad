"""The table [record] of the configuration: recording of requests in a compact file, for replay."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

from balancer.config.schema.section import Section


class RecordConfig(Section):
    """Recording; off unless enabled here or started by POST /-/record, which requires a path."""

    enabled: bool = Field(
        default=False,
        description="recording of requests from the start; else `POST /-/record` begins it; see [Live](live.md)",
    )
    path: str | None = Field(
        default=None,
        min_length=1,
        description="path | recording file, appended to; required for recording. With several processes each adds its"
        " number to it",
    )
    limit: int = Field(
        default=67_108_864,
        ge=65_536,
        description="bytes | largest size of the file, at which recording ends; a request takes about 30 bytes",
    )
    queue: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="requests | number of requests that may wait to be written; more are dropped and counted",
    )
    paths: bool = Field(default=False, description="recording of request paths, without their query")
    salt: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="text | salt of the hashes of keys, 16 characters or more; default: a new one for each recording",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.enabled and self.path is None:
            raise ValueError("path: is required where recording is enabled")
        return self
