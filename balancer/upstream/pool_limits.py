"""What pools go by, as plain values.

Rule of this file: what each bounds stands in the configuration's section `pool`, with the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from balancer.upstream.idle_timeout import IdleTimeoutRules

SHORTEST: Final = 0.9
"""Part of the greatest age, and of the most requests, that a connection has at least: not all are to end at once."""

UNBOUNDED: Final = (1 << 30) - 1
"""Requests, where none has said how many there may be: more than a connection serves at its greatest age, and the
largest number that Python counts down in one digit."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Durations in seconds. `requests` per connection, None: any number. `warm` connections are kept ready, with
    requests for the path `heartbeat` unless it is None. `backoff` is the longest pause between connects to an endpoint
    in trouble, 0: none. `seed` is of the jitter's randomness; None: a fresh one."""

    idle: float = 30.0
    max_age: float = 300.0
    connect_timeout: float = 2.0
    requests: int | None = None
    horizon: IdleTimeoutRules = field(default_factory=IdleTimeoutRules)
    warm: int = 0
    heartbeat: str | None = None
    heartbeat_method: str = "HEAD"
    backoff: float = 1.0
    seed: int | None = None

    def lifetime(self, rng: Random) -> float:
        """Seconds that one connection may serve for."""
        return self.max_age * rng.uniform(SHORTEST, 1.0)

    def grant(self, rng: Random) -> int:
        """Requests that one connection may serve."""
        if self.requests is None:
            return UNBOUNDED
        return max(1, round(self.requests * rng.uniform(SHORTEST, 1.0)))
