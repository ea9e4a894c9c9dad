"""The table [record] of the configuration: recording of requests in a compact file, for replay."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

from balancer.config.sections import Section


class RecordConfig(Section):
    """Recording; off unless enabled here or started by POST /-/record, which requires a path."""

    enabled: bool = Field(default=False, description="record from the start; else POST /-/record begins it")
    path: str | None = Field(
        default=None, min_length=1, description="appended to; several processes each add a number to it"
    )
    limit: int = Field(
        default=67_108_864, ge=65_536, description="bytes of the file; a request takes some 30, then it ends"
    )
    queue: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="requests that may wait to be written; more are dropped",
    )
    paths: bool = Field(default=False, description="keep the paths of requests, too, without their query")
    salt: SecretStr | None = Field(
        default=None, min_length=16, description="of the hashes of keys. None: a fresh one each time"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.enabled and self.path is None:
            raise ValueError("path: is required where recording is enabled")
        return self
