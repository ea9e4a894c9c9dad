"""What the balancer does beside picking: retries, hedging, ejection, checks, slow start, limits.

Rule of this file: the tables are the balancer's own, so a scenario says it as a configuration file does and nothing is
stated twice. What nobody says has the balancer's default. Durations are real seconds: no time scale compresses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from balancer.config.health import ChecksConfig, EjectionConfig, PanicConfig, SlowStartConfig
from balancer.config.pool import PoolConfig
from balancer.config.queue import ConcurrencyConfig, QueueConfig
from balancer.config.retries import HedgingConfig, RetryConfig
from balancer.config.sections import LimitsConfig, TimeoutsConfig
from experiments.campaign.model import Model

Said = Mapping[str, Any]


class Mechanisms(Model):
    """All of them, defaults filled in."""

    retries: int = Field(default=2, ge=0, le=10, description="further endpoints tried where that is safe")
    retry: RetryConfig = RetryConfig()
    hedging: HedgingConfig = HedgingConfig()
    checks: ChecksConfig = ChecksConfig()
    ejection: EjectionConfig = EjectionConfig()
    panic: PanicConfig = PanicConfig()
    slow_start: SlowStartConfig = SlowStartConfig()
    pool: PoolConfig = PoolConfig()
    limits: LimitsConfig = LimitsConfig()
    queue: QueueConfig = QueueConfig()
    concurrency: ConcurrencyConfig = ConcurrencyConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()


def checked(said: dict[str, Any]) -> dict[str, Any]:
    """Kept as it was said, once it is known to be sound: an entry replaces single keys of it."""
    try:
        Mechanisms.model_validate(said)
    except ValidationError as error:
        complaint = error.errors()[0]
        place = ".".join(str(part) for part in complaint["loc"])
        raise ValueError(f"{place}: {complaint['msg'].removeprefix('Value error, ')}") from None
    return said


BalancerTable = Annotated[dict[str, Any], AfterValidator(checked)]
"""The table `[balancer]` of a scenario, or of an entry."""


def merged(below: Said, above: Said) -> dict[str, Any]:
    """`below`, with the keys that `above` says instead; tables are merged key by key."""
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            both[key] = merged(under, value)
        else:
            both[key] = value
    return both
