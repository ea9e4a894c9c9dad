"""Parts of routes: bodies of fixed answers and of errors, mirrors, forward authorisation, and the weights of splits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from math import fsum
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from balancer.config.problems import ConfigError, in_file
from balancer.config.schema.field_edits import RequestFieldEdits
from balancer.config.schema.section import (
    MOST_WEIGHT,
    BufferSize,
    FieldName,
    InSeconds,
    Name,
    PositiveShare,
    Seconds,
    Section,
)
from balancer.errors import REASONS

MOST_BYTES: Final = 1 << 20
"""Bytes of a body from a file, which every process keeps."""

_STATUSES: Final = re.compile(r"[45]([0-9]{2}|xx)").fullmatch


def _error(name: str) -> str:
    if name not in REASONS and not _STATUSES(name):
        raise ValueError(
            f"must be a reason of docs/operations.md, a status such as 503, 4xx or 5xx, got '{name:.40}'"
        )
    return name


ErrorName = Annotated[str, AfterValidator(_error)]
MediaType = Annotated[str, StringConstraints(pattern=r"^[!-~]([ -~]*[!-~])?$", max_length=256)]


class OwnBody(Section):
    """A body, in the configuration or in a file, which is read when the configuration is loaded."""

    body: str = Field(default="", max_length=65_536, description="text | its body, at most 64 KiB")
    file: Path | None = Field(
        default=None,
        description="file | its body from a file of at most 1 MiB, read at the start and by a reload",
    )
    content_type: MediaType = Field(
        default="text/plain; charset=utf-8",
        description="media type | its Content-Type, if it has a body; default of a file: by the end of its name",
    )

    @model_validator(mode="after")
    def _has_one_body(self) -> Self:
        if self.file is not None:
            if self.body:
                raise ValueError("file: give body or file, not both")
            kind = guess_type(self.file.name)[0] or "application/octet-stream"
            self._derive(content_type=f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
        return self

    @cached_property
    def content(self) -> bytes:
        """The body, which is read once. Raises `ConfigError`, whose message begins with the key."""
        if self.file is None:
            return self.body.encode()
        with in_file("file", self.file), self.file.open("rb") as file:
            body = file.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise ConfigError(f"file: must have at most {MOST_BYTES} bytes, {self.file} has more")
        return body


Method = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z-]*$", max_length=32)]


class MirrorConfig(Section):
    """A mirror: its cluster, and which requests are copied to it."""

    cluster: Name = Field(
        description="name | cluster that gets copies of the route's requests; see [Mirroring](#mirroring)"
    )
    share: PositiveShare = Field(
        description="0–1 | share of the requests that are copied, drawn for each; more than 0"
    )
    methods: tuple[Method, ...] = Field(
        default=("GET", "HEAD", "OPTIONS"),
        min_length=1,
        description="list of methods | methods of requests that are copied",
    )
    body: BufferSize = Field(default=65_536, description="bytes | longest body that is copied")
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


CopiedName = Annotated[FieldName, StringConstraints(to_lower=True)]

OURS: Final = {*RequestFieldEdits.OWNED, "date", "x-real-ip"} - {"content-type"}
"""Fields that forwarding sets or needs, which cannot be copied from the answer of an authorisation."""


class AuthConfig(Section):
    """Forward authorisation: the cluster that is asked, and what is copied from its answer."""

    cluster: Name = Field(
        description="name | cluster that is asked before a request of the route is forwarded; see "
        "[Authorisation](#authorisation)",
        examples=["login"],
    )
    path: Annotated[str, StringConstraints(pattern=r"^/[!-~]*$", max_length=2048)] = Field(
        description="path | path, with a query if one is wanted, of the subrequest", examples=["/check"]
    )
    timeout: Seconds = Field(default=5.0, description="s | time for the answer; then the client gets 503")
    request_fields: tuple[CopiedName, ...] = Field(
        default=(),
        description="list of names | fields of a 2xx answer that the worker gets; the client's own are removed",
    )
    response_fields: tuple[CopiedName, ...] = Field(
        default=(),
        description="list of names | fields of a 2xx answer that the client gets, such as `set-cookie`",
    )
    cache: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False), InSeconds] = Field(
        default=0.0,
        description="s | time for which a 2xx answer holds for equal requests, at most an hour; 0: every request asks",
    )
    cache_by: tuple[CopiedName, ...] = Field(
        default=("authorization", "cookie"),
        description="list of names | fields of a request that the answer may depend on, beside its method, scheme, "
        "host, target, client address and client certificate",
    )

    @model_validator(mode="after")
    def _may_be_copied(self) -> Self:
        for key in ("request_fields", "response_fields"):
            for name in getattr(self, key):
                if name in OURS or name.startswith("x-forwarded-"):
                    raise ValueError(f"{key}: '{name}' is set by the balancer, and cannot be copied")
        if "cache_by" in self.model_fields_set and not self.cache:
            raise ValueError("cache_by: needs cache")
        return self


Weight = Annotated[float, Field(ge=0, le=MOST_WEIGHT, allow_inf_nan=False)]


def check_weights(key: str, weights: Mapping[str, float]) -> None:
    """Check the weights of a split. Raises ValueError."""
    if len(weights) < 2:
        raise ValueError(f"{key}: must name two clusters or more, got {len(weights)}")
    if not fsum(weights.values()):
        raise ValueError(f"{key}: one of the weights must be more than 0")


class SplitChange(Section):
    """Body of PUT /-/splits: the weights of all clusters of a split, and of which route, if not of all that are split
    between these clusters."""

    weights: dict[Name, Weight]
    route: str | None = None
    reason: Annotated[str, StringConstraints(max_length=200, pattern=r"^[ -~]+$")] | None = Field(
        default=None, description="shown in the status until the next change"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        check_weights("weights", self.weights)
        return self
