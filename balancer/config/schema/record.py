"""The table [record] of the configuration: recording of requests in a compact file, for replay."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

from balancer.config.schema.section import Section


class RecordConfig(Section):
    """Recording; off unless enabled here or started by POST /-/record, which requires a path."""

    enabled: bool = Field(
        default=False, description="record from the start; otherwise POST /-/record starts it"
    )
    path: str | None = Field(
        default=None, min_length=1, description="appended to; several processes each add a number to it"
    )
    limit: int = Field(
        default=67_108_864,
        ge=65_536,
        description="maximum bytes of the file, at which the recording ends; a request takes about 30",
    )
    queue: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="maximum requests waiting to be written; more are dropped",
    )
    paths: bool = Field(
        default=False, description="record the paths of requests as well, without their query"
    )
    salt: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="salt of the hashes of keys. None: a new one for each recording",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.enabled and self.path is None:
            raise ValueError("path: is required where recording is enabled")
        return self
