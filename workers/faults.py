"""Fault injection: faults that can be switched on while a worker runs, what they do to requests, emulated GC pauses.

One set of faults is active at a time; `put` replaces all of it, and the empty set clears it. Probabilities are drawn
from the switchboard's own generator, so a fault changes no other random number.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from random import Random
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from workers.alarm import DeadlineTimer
from workers.slots import Slots

SECONDS: Final = "seconds"
"""Marks a field of `Faults` that is a time, which `workers fault` takes as a duration such as `150ms`."""

OPTIONS: Final = {"fail_status": "fail", "every": "pause", "after": "pause"}
"""Option of a fault -> the fault, without which it is refused."""

Share = Annotated[float, Field(ge=0, le=1)]
Time = Annotated[float, Field(ge=0, le=3600), SECONDS]


class Faults(BaseModel):
    """A set of faults; each is an option of `workers fault`. `true` stands for a share of 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    slow: float = Field(default=1.0, gt=0, le=1e6, description="factor of service times, fixed on admission")
    hang: Share = Field(
        default=0.0, description="share of requests not answered while it lasts; they are served afterwards"
    )
    fail: Share = Field(
        default=0.0, description="share answered at once with an error; health checks succeed"
    )
    fail_status: Literal[500, 502, 503, 504] = Field(
        default=500, description="status of that error: 500, 502, 503 or 504"
    )
    reset: Share = Field(default=0.0, description="share whose connection is reset (RST)")
    cut: Share = Field(
        default=0.0,
        description="share of streamed answers of `workers inference` that end in the middle",
    )
    pause: Time = Field(
        default=0.0,
        description="the worker stops for so long, as in a garbage collection: requests being served end that much "
        "later, new ones wait, `/healthz` too",
    )
    every: Annotated[float, SECONDS] = Field(
        default=0.0,
        ge=0,
        description="time from the beginning of a pause to the next one; 0: there is one. Another set with the same "
        "`pause` and `every` keeps the phase",
    )
    after: Time = Field(default=0.0, description="time until the first pause")
    rtt: Annotated[float | None, SECONDS] = Field(
        default=None,
        ge=0,
        le=60,
        description="new round trip, also on existing connections; only for workers started with `--rtt`",
    )
    unhealthy: bool = Field(default=False, description="`/healthz` answers 503, nothing else changes")
    down: bool = Field(
        default=False,
        description="connections are reset, new ones refused. It ends by `lasts` or SIGHUP, since commands cannot "
        "reach it",
    )
    lasts: Annotated[float | None, SECONDS] = Field(
        default=None, gt=0, description="time after which this set ends by itself"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        """Reject pauses that overlap or never come, and options without their fault."""
        if self.every and self.every <= self.pause:
            raise ValueError("every: must be longer than the pause")
        if self.lasts is not None and self.after >= self.lasts:
            raise ValueError("after: must be less than lasts")
        if self.model_dump(exclude_defaults=True).keys() == {"lasts"}:
            raise ValueError("lasts: says nothing without a fault")
        for option, fault in OPTIONS.items():
            if getattr(self, option) != type(self).model_fields[option].default and not getattr(self, fault):
                raise ValueError(f"{fault}: {option} says nothing without it")
        return self


HEALED = Faults()

TIMES: Final = [name for name, field in Faults.model_fields.items() if SECONDS in field.metadata]
"""Faults that are times. The time scale of scenarios multiplies the fields of `FaultState` of these names."""


class Treatment(Enum):
    """What happens to a request instead of service: the first whose share, the fault of its name, is drawn."""

    RESET = "reset"
    HANG = "hang"
    FAIL = "fail"
    CUT = "cut"
    SERVE = "serve"


class FaultEffects:
    """What `faults`, a `Faults` or a `FaultState`, do to the requests of an emulated or simulated worker of this speed.

    Oracles expect `mean` and `variance`, a test compares them with `service_time`. `pace`: the least seconds that a
    second of work takes. `lost_share`: the greatest share of requests not served; one may hide another."""

    def __init__(self, faults: Any, speed: float = 1.0) -> None:
        self._shares = {one: share for one in Treatment if (share := getattr(faults, one.value, 0.0)) > 0}
        self.lost_share: float = max(self._shares.values(), default=0.0)
        self.pace: float = faults.slow / speed

    def treatment(self, rng: Random) -> Treatment:
        """Decide one request."""
        return next((one for one, share in self._shares.items() if rng.random() < share), Treatment.SERVE)

    def service_time(self, work: float, rng: Random) -> float:
        """Service time of one request of so many seconds of work."""
        return work * self.pace

    def mean(self, work: float) -> float:
        """Mean of `service_time`, given that of the work."""
        return work * self.pace

    def variance(self, of_work: float) -> float:
        """Variance of `service_time`, given that of the work."""
        return of_work * self.pace**2


class Switchboard:
    """The active faults. Belongs to one running loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: Random) -> None:
        self._loop = loop
        self._rng = rng
        self._changed = asyncio.Event()
        self._healing: asyncio.TimerHandle | None = None
        self._subscribers: list[Callable[[Faults], None]] = []
        self.heal()

    def put(self, faults: Faults) -> None:
        """Replace the active faults; requests that hang are decided again."""
        if self._healing is not None:
            self._healing.cancel()
            self._healing = None
        if faults.lasts is not None:
            self._healing = self._loop.call_later(faults.lasts, self.heal)
        self.current = faults
        self._effects = FaultEffects(faults)
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
        """Decide one request. Down: a connection that was being accepted when the socket closed is reset, too."""
        return Treatment.RESET if self.current.down else self._effects.treatment(self._rng)

    def service_time(self, work: float) -> float:
        """Service time of one request of so many seconds of work that is admitted now."""
        return self._effects.service_time(work, self._rng)


class GcPause:
    """Stops `slots` for the configured pauses. `until` is the end of the last one in `time.monotonic()` seconds, and
    `stopped` how many seconds they took in all, the last one to its end.

    During a pause no request is admitted or answered, and services in progress end that much later. The link in front
    of the worker goes on.
    """

    def __init__(self, timer: DeadlineTimer, slots: Slots) -> None:
        self._timer = timer
        self._slots = slots
        self._length = self._every = 0.0
        self._turn = 0
        self.until = -math.inf
        self.stopped = 0.0

    def apply(self, faults: Faults) -> None:
        """Apply a new set of faults. Pauses of the same length and period keep their phase."""
        if (faults.pause, faults.every) == (self._length, self._every):
            return
        self._length, self._every = faults.pause, faults.every
        self._turn += 1  # makes callbacks scheduled for an earlier set do nothing
        if faults.pause:
            self._schedule(time.monotonic() + faults.after)

    async def over(self) -> float:
        """Wait until no pause is in progress; return the end of the last one, -inf if there was none."""
        while (until := self.until) > time.monotonic():
            await self._timer.wait_until(until)
        return until

    async def served(self, finish_at: float) -> float:
        """Wait for the end of a service due at `finish_at`; return the actual end, pauses included.

        Call it as soon as the service is admitted.
        """
        stopped = self.stopped
        await self._timer.wait_until(finish_at)
        while self.stopped > stopped:
            finish_at += self.stopped - stopped
            stopped = self.stopped
            await self._timer.wait_until(finish_at)
        return finish_at

    def _schedule(self, at: float) -> None:
        self._timer.schedule(at, partial(self._stop, at, self._turn))

    def _stop(self, at: float, turn: int) -> None:
        if turn != self._turn:
            return
        self.until = at + self._length
        self.stopped += self._length
        self._slots.pause(at, self.until)
        if self._every:
            self._schedule(at + self._every)
