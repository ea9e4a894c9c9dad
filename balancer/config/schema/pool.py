"""The table [pool] of the configuration: upstream connection pools."""

from __future__ import annotations

from random import Random
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from balancer.config.schema.section import Count, Duration, RequestPath, Seconds, Section

HEARTBEAT_PRECONNECT = 2
"""Spare connections if a heartbeat is configured and their number is not: with little traffic, all but a few requests
in a thousand find one."""

JITTER_FLOOR: Final = 0.9
"""Lower bound of the jitter on a connection's maximum age and number of requests, as a fraction, so that connections do
not all end at once."""

UNLIMITED_REQUESTS: Final = (1 << 30) - 1
"""Value for an unlimited number of requests: more than a connection serves at its maximum age, and the largest number
that CPython stores in one digit."""


class PoolConfig(Section):
    """Connection pool of each endpoint: idle time, age, preconnect, heartbeat and backoff."""

    idle_timeout: Seconds = Field(
        default=30.0,
        description="longest idle time of a worker connection; the worker's own idle timeout is "
        "[estimated](#connections)",
    )
    risk: float = Field(
        default=0.01,
        ge=0,
        le=0.5,
        description="share | accepted chance that the worker has closed a reused connection, a tenth of it for "
        "requests that must not be repeated; 0: nothing is estimated, and `pool.idle_timeout` must stay "
        "below the worker's",
    )
    max_age: Seconds = Field(
        default=300.0, description="age after which a connection is not reused, less a random 0–10 %"
    )
    max_requests: Count | None = Field(
        default=None,
        description="requests | number of requests on one connection, less a random 0–10 %; default: no limit",
    )
    preconnect: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="number of spare connections to each endpoint that are kept open; default: 2 with `heartbeat`; "
        "see [Connections](#connections)",
    )
    heartbeat: RequestPath | None = Field(
        default=None,
        description="path | path of a request that keeps spare connections alive; without it they are replaced before"
        " they expire",
    )
    heartbeat_method: Literal["HEAD", "GET"] = Field(default="HEAD", description="method of the heartbeat")
    max_backoff: Duration = Field(
        default=1.0,
        ge=0,
        le=60,
        description="s | longest pause between connects to an endpoint after three failed in a row; 0: no pause",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.heartbeat is not None:
            self._derive(preconnect=HEARTBEAT_PRECONNECT)
        if self.heartbeat is not None and not self.preconnect:
            raise ValueError("heartbeat: applies to spare connections only, and preconnect is 0")
        return self

    def lifetime(self, rng: Random) -> float:
        """Maximum age of one connection in seconds, with jitter."""
        return self.max_age * rng.uniform(JITTER_FLOOR, 1.0)

    def grant(self, rng: Random) -> int:
        """Number of requests that one connection may serve, with jitter."""
        if self.max_requests is None:
            return UNLIMITED_REQUESTS
        return max(1, round(self.max_requests * rng.uniform(JITTER_FLOOR, 1.0)))
