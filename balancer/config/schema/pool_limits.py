"""Limits of connection pools. Their meaning and defaults are those of the configuration section `pool`."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

JITTER_FLOOR: Final = 0.9
"""Lower bound of the jitter on a connection's maximum age and number of requests, as a fraction, so that connections do
not all end at once."""

UNLIMITED_REQUESTS: Final = (1 << 30) - 1
"""Value for an unlimited number of requests: more than a connection serves at its maximum age, and the largest number
that CPython stores in one digit."""


@dataclass(frozen=True, slots=True)
class IdleTimeoutRules:
    """Parameters of the idle-timeout estimate (`upstream/http1/idle_timeout.py`).

    `risk` and `strict_risk`: accepted probability that a leased connection is already closed, for requests that may be
    retried and for those that may not; `risk` 0 turns learning off. `half_life`: seconds after which evidence has half
    its weight.
    """

    risk: float = 0.01
    strict_risk: float = 0.001
    half_life: float = 600.0


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of a connection pool; durations in seconds.

    `requests`: requests per connection, None: unlimited. `warm`: number of connections kept ready (preconnect), with
    heartbeats on the path `heartbeat` unless it is None. `backoff`: longest pause between connects during a backoff, 0:
    none. `seed`: seed of the jitter, None: random.
    """

    idle: float = 30.0
    max_age: float = 300.0
    connect_timeout: float = 2.0
    requests: int | None = None
    idle_timeout: IdleTimeoutRules = field(default_factory=IdleTimeoutRules)
    warm: int = 0
    heartbeat: str | None = None
    heartbeat_method: str = "HEAD"
    backoff: float = 1.0
    seed: int | None = None

    def lifetime(self, rng: Random) -> float:
        """Maximum age of one connection in seconds, with jitter."""
        return self.max_age * rng.uniform(JITTER_FLOOR, 1.0)

    def grant(self, rng: Random) -> int:
        """Number of requests that one connection may serve, with jitter."""
        if self.requests is None:
            return UNLIMITED_REQUESTS
        return max(1, round(self.requests * rng.uniform(JITTER_FLOOR, 1.0)))
