"""What pools go by, as plain values.

Rule of this file: what each bounds stands in the configuration's section `pool`, with the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from balancer.connections.horizon import HorizonRules


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Durations in seconds. `requests` per connection, None: any number. `warm` connections are kept ready, with
    requests for the path `heartbeat` unless it is None. `backoff` is the longest pause between connects to an endpoint
    in trouble, 0: none. `seed` is of the jitter's randomness; None: a fresh one."""

    idle: float = 30.0
    max_age: float = 300.0
    connect_timeout: float = 2.0
    requests: int | None = None
    horizon: HorizonRules = field(default_factory=HorizonRules)
    warm: int = 0
    heartbeat: str | None = None
    heartbeat_method: str = "HEAD"
    backoff: float = 1.0
    seed: int | None = None
