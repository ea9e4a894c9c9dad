"""Fault injection: faults that can be switched on while a worker runs, and the switchboard that holds them.

One set of faults is active at a time; `put` replaces all of it, and the empty set clears it. Probabilities are drawn
from the switchboard's own generator, so a fault changes no other random number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Faults(BaseModel):
    """A set of faults. `true` stands for probability 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    slow: float = Field(default=1.0, gt=0, description="service times are multiplied by this")
    hang: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of requests (0 to 1, or `true`) not answered while it lasts; they are served afterwards",
    )
    fail: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share answered at once with `fail_status`; health checks succeed",
    )
    fail_status: Literal[500, 502, 503, 504] = Field(default=500, description="500, 502, 503 or 504")
    reset: float = Field(default=0.0, ge=0, le=1, description="share whose connection is reset (RST)")
    pause: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="seconds for which the worker stops, as in a garbage collection: requests being served end that "
        "much later, new ones wait, `/healthz` too",
    )
    every: float = Field(
        default=0.0,
        ge=0,
        description="seconds from the beginning of a pause to the next one; 0: there is one. Another set with the "
        "same `pause` and `every` keeps the phase",
    )
    after: float = Field(default=0.0, ge=0, le=3600, description="seconds until the first pause")
    rtt: float | None = Field(
        default=None,
        ge=0,
        le=60,
        description="new round trip in seconds, also on existing connections; only for workers started with `--rtt`",
    )
    unhealthy: bool = Field(default=False, description="`/healthz` answers 503, nothing else changes")
    down: bool = Field(
        default=False,
        description="connections are reset, new ones refused. It ends by `lasts` or SIGHUP, since commands cannot "
        "reach it",
    )
    lasts: float | None = Field(default=None, gt=0, description="seconds after which this set ends by itself")

    @model_validator(mode="after")
    def _pauses_end(self) -> Self:
        """Reject pauses that overlap, and pause options without a pause."""
        if self.every and self.every <= self.pause:
            raise ValueError("every: must be longer than the pause")
        if (self.every or self.after) and not self.pause:
            raise ValueError("pause: every and after say nothing without it")
        return self


class Treatment(Enum):
    """Treatment of one request under the active faults."""

    SERVE = "serve"
    HANG = "hang"
    FAIL = "fail"
    RESET = "reset"


class Switchboard:
    """The active faults. Belongs to one running loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: Random) -> None:
        self._loop = loop
        self._rng = rng
        self._changed = asyncio.Event()
        self._healing: asyncio.TimerHandle | None = None
        self._subscribers: list[Callable[[Faults], None]] = []
        self.current = Faults()

    def put(self, faults: Faults) -> None:
        """Replace the active faults; requests that hang are decided again."""
        if self._healing is not None:
            self._healing.cancel()
            self._healing = None
        if faults.lasts is not None:
            self._healing = self._loop.call_later(faults.lasts, self.heal)
        self.current = faults
        for subscriber in self._subscribers:
            subscriber(faults)
        self._changed.set()
        self._changed = asyncio.Event()

    def subscribe(self, subscriber: Callable[[Faults], None]) -> None:
        """Call `subscriber` with every set of faults at once when it is put."""
        self._subscribers.append(subscriber)

    def heal(self) -> None:
        """Clear all faults: put the empty set."""
        self.put(Faults())

    async def changed(self) -> None:
        """Wait until the active faults are replaced."""
        await self._changed.wait()

    def treatment(self) -> Treatment:
        """Decide one request: reset before hang before fail."""
        faults = self.current
        # Down: a connection that was being accepted when the socket closed is reset, too.
        if faults.down or self._draw(faults.reset):
            return Treatment.RESET
        if self._draw(faults.hang):
            return Treatment.HANG
        return Treatment.FAIL if self._draw(faults.fail) else Treatment.SERVE

    def _draw(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability
