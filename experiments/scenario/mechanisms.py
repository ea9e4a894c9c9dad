"""Balancer settings of a scenario other than the policy: retries, hedging, ejection, checks, slow start, limits.

The tables are the balancer's own configuration classes, with its defaults. Durations are real seconds; the time scale
does not compress them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from balancer.config.schema.health import (
    HealthChecksConfig,
    OutlierDetectionConfig,
    PanicConfig,
    SlowStartConfig,
)
from balancer.config.schema.limits import Limits, Timeouts
from balancer.config.schema.pool import PoolConfig
from balancer.config.schema.queue import ConcurrencyConfig, QueueConfig
from balancer.config.schema.retries import HedgingConfig, RetryConfig
from balancer.config.schema.section import InSeconds
from experiments.scenario.table import Model, complaint_in_words

Said = Mapping[str, Any]


class SharedTable(Model):
    """Reports between the balancers of a scenario, in place of the store that `shared` of the balancer's configuration
    names; simulator only."""

    enabled: bool = Field(default=False, description="share requests in flight, latencies and failures")
    every: Annotated[float, InSeconds] = Field(
        default=0.02, ge=0.001, le=1.0, description="seconds between two reports of a balancer"
    )
    delay: Annotated[float, InSeconds] = Field(
        default=0.001, ge=0.0, le=10.0, description="seconds until the others hear a report"
    )


class Mechanisms(Model):
    """The balancer's settings with defaults filled in."""

    retries: int = Field(default=2, ge=0, le=10, description="further endpoints tried where that is safe")
    retry: RetryConfig = RetryConfig()
    hedging: HedgingConfig = HedgingConfig()
    health_checks: HealthChecksConfig = HealthChecksConfig()
    outlier_detection: OutlierDetectionConfig = OutlierDetectionConfig()
    panic: PanicConfig = PanicConfig()
    slow_start: SlowStartConfig = SlowStartConfig()
    pool: PoolConfig = PoolConfig()
    limits: Limits = Limits()
    queue: QueueConfig = QueueConfig()
    concurrency: ConcurrencyConfig = ConcurrencyConfig()
    timeouts: Timeouts = Timeouts()
    shared: SharedTable = SharedTable()


def checked(said: dict[str, Any]) -> dict[str, Any]:
    """Validate the table and return it without defaults, so that an entry can override keys. Raises `ValueError`."""
    try:
        Mechanisms.model_validate(said)
    except ValidationError as error:
        raise ValueError(complaint_in_words(error)) from None
    return said


BalancerTable = Annotated[dict[str, Any], AfterValidator(checked)]
"""The table `[balancer]` of a scenario or of an entry."""


def merged(below: Said, above: Said) -> dict[str, Any]:
    """`below` overridden by `above`; tables are merged key by key."""
    both = {**below, **above}
    for key, under in below.items():
        if isinstance(under, Mapping) and isinstance(both[key], Mapping):
            both[key] = merged(under, both[key])
    return both
