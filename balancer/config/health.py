"""The tables [checks], [ejection], [panic] and [slow_start] of the configuration: endpoint health.

The reasons for a default are documented with the mechanism, in `policies`.
"""

from __future__ import annotations

from random import Random
from typing import Self

from pydantic import Field, field_validator, model_validator

from balancer.config.sections import Seconds, Section
from balancer.membership.active_checks import CheckPlan
from policies.health.active_checks import CheckRules
from policies.health.health import Health
from policies.health.outlier_detection import EjectionRules
from policies.health.panic import Panic
from policies.health.slow_start import SlowStart


class ChecksConfig(Section):
    """Active checks. Without a path they only connect to unreachable endpoints: no path is known to be cheap and
    meaningful on every worker.
    """

    path: str | None = Field(
        default=None,
        description="GET this of every endpoint. None: only connect, to who was not to be reached",
    )
    status: int | None = Field(
        default=None, ge=200, le=599, description="the good answer. None: any from 200 to 399"
    )
    interval: Seconds = Field(default=5.0, description="between checks while nothing changes")
    fast_interval: Seconds = Field(
        default=2.0, description="while something changes, or the endpoint is down"
    )
    timeout: Seconds = Field(default=1.0, description="a check, from before its connection to its last byte")
    rise: int = Field(default=2, ge=1, le=100, description="good ones in a row until it is healthy")
    fall: int = Field(default=3, ge=1, le=100, description="bad ones in a row until it is not")

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, value: str | None) -> str | None:
        is_plain = value is None or (value.startswith("/") and value.isascii() and value.isprintable())
        if not is_plain or (value is not None and " " in value):
            raise ValueError(f"must begin with / and hold no spaces and nothing but ASCII, got '{value}'")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.fast_interval > self.interval:
            raise ValueError("fast_interval: must not be longer than interval")
        return self

    def plan(self, seed: int | None) -> CheckPlan:
        """Return the parameters of the active checks."""
        rules = CheckRules(self.interval, self.fast_interval, self.rise, self.fall)
        return CheckPlan(self.path, self.status, self.timeout, rules, seed)


class EjectionConfig(Section):
    """Outlier detection: an endpoint that fails live traffic is ejected for a while; never more than half of the pool.
    0 switches a rule off.
    """

    failures: int = Field(default=5, ge=0, le=10_000, description="in a row. 0: never for that")
    success_rate: float = Field(
        default=0.8, ge=0, le=1, description="less than this part of what the others reach. 0: never for that"
    )
    window: Seconds = Field(default=30.0, description="over which the success rate is taken")
    requests: int = Field(default=5, ge=1, description="in the window, at least, for a success rate")
    latency: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="waits this many times as long as is usual in the pool. 0: never for that",
    )
    time: Seconds = Field(default=30.0, description="of the first ejection; the n-th takes n times as long")
    longest: Seconds = Field(default=300.0, description="ejection")

    def rules(self) -> EjectionRules:
        """Return the rules of outlier detection as plain values."""
        return EjectionRules(**self.model_dump())


class PanicConfig(Section):
    """Panic mode: health is ignored when too few endpoints are healthy."""

    share: float = Field(default=0.5, ge=0, le=1, description="part that must be fit. 0: never panic")


class SlowStartConfig(Section):
    """Slow start: a new or returned endpoint gets its share gradually.

    Off by default: a pool that has lost a worker needs the next one at once, and nothing indicates that it is cold.
    """

    window: float = Field(
        default=0.0, ge=0, le=86_400, allow_inf_nan=False, description="until the whole share. 0: at once"
    )
    least: float = Field(default=0.1, gt=0, le=1, description="part of the share to begin with")


def health_of(
    ejection: EjectionConfig, panic: PanicConfig, slow_start: SlowStartConfig, rng: Random
) -> Health:
    """Return the health mechanisms that these tables configure."""
    return Health(
        rng,
        ejection=ejection.rules(),
        panic=Panic(panic.share),
        slow_start=SlowStart(slow_start.window, slow_start.least),
    )
