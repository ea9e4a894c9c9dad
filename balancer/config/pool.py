"""The table [pool] of the configuration: upstream connection pools."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from balancer.config.sections import Seconds, Section
from balancer.upstream.idle_timeout import IdleTimeoutRules
from balancer.upstream.pool_limits import PoolLimits


class PoolConfig(Section):
    """Connection pool of each endpoint: idle time, age, preconnect, heartbeat and backoff."""

    idle: Seconds = Field(
        default=30.0,
        description="keep an unused one for so long at most; how long the worker keeps it is learned",
    )
    risk: float = Field(
        default=0.01,
        ge=0,
        le=0.5,
        description="chance that the worker has closed one that is used again, a tenth of it for what may not be "
        "repeated; 0: nothing is learned, and `idle` must stay below what the worker keeps",
    )
    max_age: Seconds = Field(
        default=300.0, description="oldest connection that is used again, less up to 10 %"
    )
    requests: int | None = Field(
        default=None, ge=1, description="on one connection, less up to 10 %. None: any number"
    )
    warm: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="connections kept ready to each endpoint, beside those in use; 0: none is opened ahead",
    )
    heartbeat: str | None = Field(
        default=None,
        pattern=r"^/[!-~]*$",
        description="path asked for to keep the warm ones alive. None: they are opened anew before they end",
    )
    heartbeat_method: Literal["HEAD", "GET"] = Field(default="HEAD", description="of the heartbeat")
    backoff: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="seconds: longest pause between connects to an endpoint that several have failed to; 0: none",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.heartbeat is not None and not self.warm:
            raise ValueError("heartbeat: is for warm connections, and warm is 0")
        return self

    def limits(self, connect_timeout: float, seed: int | None) -> PoolLimits:
        """Return the limits of the connection pools; `connect_timeout` is in seconds."""
        return PoolLimits(
            idle=self.idle,
            max_age=self.max_age,
            connect_timeout=connect_timeout,
            requests=self.requests,
            idle_timeout=IdleTimeoutRules(self.risk, self.risk / 10),
            warm=self.warm,
            heartbeat=self.heartbeat,
            heartbeat_method=self.heartbeat_method,
            backoff=self.backoff,
            seed=seed,
        )
