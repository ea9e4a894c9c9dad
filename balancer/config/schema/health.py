"""The tables [health_checks], [outlier_detection], [panic] and [slow_start] of the configuration: endpoint health.

The reasons for a default are documented with the mechanism, in `policies`.
"""

from __future__ import annotations

import re
from random import Random
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, StringConstraints, model_validator

from balancer.config.schema.endpoint import HostName
from balancer.config.schema.routes import HOP_BY_HOP, FieldName
from balancer.config.schema.section import (
    Count,
    Duration,
    Port,
    PositiveShare,
    RequestPath,
    Seconds,
    Section,
    Share,
)
from policies.endpoint.ejection import EjectionRules
from policies.health.health import Health
from policies.health.panic import Panic
from policies.health.priority_levels import OVERPROVISIONING
from policies.health.slow_start import SlowStart

NOT_OF_CHECKS: Final = HOP_BY_HOP | {"content-length", "content-type", "expect"}
"""Fields that checks cannot have: those of a connection and of a body, and Host."""

NOT_OF_GRPC: Final = ("path", "status", "body")
"""Keys that do not go with `grpc`."""

IS_FIELD_VALUE: Final = re.compile(r"[!-~]([ -~]{0,1022}[!-~])?").fullmatch

MAX_SERVICE_NAME_BYTES: Final = 127
"""Of a gRPC service in a check: its length is one byte of the message."""


def _service(name: str) -> str:
    if not (name.isascii() and name.isprintable()) or " " in name:
        raise ValueError(f"must be the name of a service, ASCII without spaces, got {name!r}")
    return name


def _fields(fields: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name, value in fields.items():
        if name in NOT_OF_CHECKS:
            raise ValueError(f"{name} cannot be set; a host is given by 'host'")
        if not IS_FIELD_VALUE(value.get_secret_value()):
            raise ValueError(f"{name} must have a value of 1 to 1024 printable ASCII characters")
    return fields


class HealthChecksConfig(Section):
    """Active checks. Without a path or a service they only connect to unreachable endpoints: no path is known to be
    cheap and meaningful on every worker.
    """

    path: RequestPath | None = Field(
        default=None,
        description="path | path of the active health check; without it there are none; see [Health](#health)",
    )
    grpc: (
        Annotated[str, StringConstraints(max_length=MAX_SERVICE_NAME_BYTES), AfterValidator(_service)] | None
    ) = Field(
        default=None,
        description='name | instead of `path`: service whose health is asked for by `grpc.health.v1`; `""` asks for '
        'the worker as a whole; needs `transport = "http2"`, or a `port` of its own; see [gRPC](grpc.md#health-checks)',
    )
    first_connect: bool = Field(
        default=True,
        description="without a path or a service: one connect to each endpoint at the start and when it is added, to "
        "learn whether it can be reached",
    )
    status: int | None = Field(
        default=None, ge=200, le=599, description="status of a passed check; default: any from 200 to 399"
    )
    body: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="text | text that must be in the first 64 KiB of the body; default: any body",
    )
    host: HostName | None = Field(
        default=None, description="name | Host of checks; default: that of requests, or of the address"
    )
    port: Port | None = Field(
        default=None,
        description="1–65535 | port that checks ask, each on a new connection, by `path` in HTTP/1.1; default: that of "
        "the endpoint",
    )
    scheme: Literal["http", "https"] | None = Field(
        default=None, description="scheme of checks at `port`; default: that of the endpoint"
    )
    fields: Annotated[dict[FieldName, SecretStr], AfterValidator(_fields)] = Field(
        default={}, description='table | further fields of checks, `{ authorization = "Bearer …" }`'
    )
    interval: Seconds = Field(
        default=5.0,
        description="time between two checks of an endpoint, ±10 %; default: `fast_interval` if that is longer",
    )
    fast_interval: Seconds = Field(
        default=2.0,
        description="the same while the state changes or the endpoint is unhealthy; default: `interval` if that is "
        "shorter",
    )
    timeout: Seconds = Field(default=1.0, description="timeout of a check, from the connect to the last byte")
    rise: int = Field(
        default=2,
        ge=1,
        le=100,
        description="number of consecutive passed checks until an endpoint is healthy",
    )
    fall: int = Field(
        default=3, ge=1, le=100, description="number of consecutive failed checks until it is unhealthy"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.grpc is not None and self._has(*NOT_OF_GRPC):
            *others, last = NOT_OF_GRPC
            raise ValueError(f"grpc: asks by gRPC, so {', '.join(others)} and {last} do not apply")
        if self._has("interval"):
            self._derive(fast_interval=min(self.fast_interval, self.interval))
        self._derive(interval=max(self.interval, self.fast_interval))
        if self.fast_interval > self.interval:
            raise ValueError(
                f"fast_interval: must not be longer than interval ({self.interval:g}), got {self.fast_interval:g}"
            )
        return self


class OutlierDetectionConfig(Section):
    """Outlier detection: an endpoint that fails live traffic is ejected for a while, never more than half of them.
    0 switches a rule off.
    """

    failures: int = Field(
        default=5,
        ge=0,
        le=10_000,
        description="requests | number of consecutive failures after which an endpoint is ejected; 0: off",
    )
    success_rate: Share = Field(
        default=0.8,
        description="success rate, as a part of that of the other endpoints, below which it is ejected; 0: off",
    )
    window: Seconds = Field(default=30.0, description="time over which the success rate is measured")
    min_requests: Count = Field(
        default=5, description="requests | number of requests in the window that a success rate needs"
    )
    latency: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="times | latency, as a multiple of the cluster's median, above which it is ejected; 0: off",
    )
    base_time: Seconds = Field(
        default=30.0,
        description="duration of the first ejection, less a random 0–10 %; the n-th takes n times as long; default: "
        "`max_time` if that is shorter",
    )
    max_time: Seconds = Field(
        default=300.0, description="longest ejection; default: `base_time` if that is longer"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self._has("max_time"):
            self._derive(base_time=min(self.base_time, self.max_time))
        self._derive(max_time=max(self.max_time, self.base_time))
        return self

    def rules(self) -> EjectionRules:
        """Return the rules of outlier detection as plain values."""
        return EjectionRules(**self.model_dump())


class PanicConfig(Section):
    """Panic mode: health is ignored when too few endpoints are healthy."""

    threshold: Share = Field(
        default=0.5, description="healthy share of the cluster below which health is ignored; 0: never"
    )
    overprovisioning: float = Field(
        default=OVERPROVISIONING,
        ge=1,
        le=1000,
        description="factor by which the endpoints of a level of `endpoints.priority` can carry more than their share",
    )


class SlowStartConfig(Section):
    """Slow start: a new or returned endpoint gets its share gradually.

    Off by default: a cluster that has lost a worker needs the next one at once, and nothing indicates that it is cold.
    """

    window: Duration = Field(
        default=0.0,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="duration of the slow start of a new or returned endpoint; 0: off",
    )
    minimum: PositiveShare = Field(
        default=0.1, description="0–1 | share of its weight at the start; more than 0"
    )


def health_of(
    outlier_detection: OutlierDetectionConfig, panic: PanicConfig, slow_start: SlowStartConfig, rng: Random
) -> Health:
    """Return the health mechanisms that these tables configure."""
    return Health(
        rng,
        ejection=outlier_detection.rules(),
        panic=Panic(panic.threshold, panic.overprovisioning),
        slow_start=SlowStart(slow_start.window, slow_start.minimum),
    )
