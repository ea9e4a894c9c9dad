"""Fault injection: faults that can be switched on while a worker runs, the switchboard that holds them, emulated GC
pauses, and the HTTP interface `/-/faults`.

One set of faults is active at a time; `put` replaces all of it, and the empty set clears it. Probabilities are drawn
from the switchboard's own generator, so a fault changes no other random number.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from random import Random
from typing import Literal, Self
from weakref import WeakSet

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from workers.alarm import DeadlineTimer
from workers.slots import Slots


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
    cut: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of streamed answers of `workers inference` that end in the middle: the connection closes",
    )
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


HEALED = Faults()


class Treatment(Enum):
    """Treatment of one request under the active faults."""

    SERVE = "serve"
    HANG = "hang"
    FAIL = "fail"
    RESET = "reset"
    CUT = "cut"


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
        """Decide one request: reset before hang before fail before cut."""
        faults = self.current
        # Down: a connection that was being accepted when the socket closed is reset, too.
        if faults.down or self._draw(faults.reset):
            return Treatment.RESET
        if self._draw(faults.hang):
            return Treatment.HANG
        if self._draw(faults.fail):
            return Treatment.FAIL
        return Treatment.CUT if self._draw(faults.cut) else Treatment.SERVE

    def _draw(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability


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


FORWARDING_FIELDS = ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP")

NO_LINK = "this worker was started without --rtt and has no link whose length could change"


class Control:
    """Handlers of `/-/faults` for one switchboard, for clients on this machine only; others get 404.

    A load balancer on this machine is a loopback peer, too, and forwards what its clients send. It forwards no path
    that begins with /-/, but an equivalent one such as /%2D/faults; so the path must be written literally, and a
    request with the header fields of a proxy is refused.

    GET shows the active faults, PUT replaces them with a JSON object (`{}` clears them), DELETE clears them. `peers`
    are the connections that have sent a control request. `has_link`: the worker's round trip can be changed. `lacks`:
    faults that this worker does not have.
    """

    def __init__(
        self, switchboard: Switchboard, has_link: bool = False, lacks: tuple[str, ...] = ("cut",)
    ) -> None:
        self._switchboard = switchboard
        self._lacks = dict.fromkeys(lacks, "this kind of worker has no such fault")
        if not has_link:
            self._lacks["rtt"] = NO_LINK
        self.peers: WeakSet[asyncio.BaseTransport] = WeakSet()

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/-/faults", self.show)
        app.router.add_put("/-/faults", self.put)
        app.router.add_delete("/-/faults", self.heal)

    async def show(self, request: web.Request) -> web.Response:
        self._admit(request)
        return self._in_force()

    async def put(self, request: web.Request) -> web.Response:
        """Replace the active faults; 422 names every invalid field."""
        self._admit(request)
        try:
            faults = Faults.model_validate_json(await request.read())
        except ValidationError as error:
            return invalid(422, "invalid_faults", error)
        wrong = [
            {"field": field, "message": message}
            for field, message in self._lacks.items()
            if getattr(faults, field) != getattr(HEALED, field)
        ]
        if wrong:
            return refused(422, "invalid_faults", wrong)
        self._switchboard.put(faults)
        return self._in_force()

    async def heal(self, request: web.Request) -> web.Response:
        """Clear all faults and respond with the empty set."""
        self._admit(request)
        self._switchboard.heal()
        return self._in_force()

    def _admit(self, request: web.Request) -> None:
        is_local = request.remote is not None and ipaddress.ip_address(request.remote).is_loopback
        is_forwarded = any(name in request.headers for name in FORWARDING_FIELDS)
        if not is_local or is_forwarded or not request.raw_path.startswith("/-/"):
            raise web.HTTPNotFound
        if request.transport is not None:
            self.peers.add(request.transport)

    def _in_force(self) -> web.Response:
        return web.json_response(self._switchboard.current.model_dump())


def invalid(status: int, reason: str, error: ValidationError) -> web.Response:
    """Return an error response that names every invalid field and the reason."""
    detail = [
        {"field": ".".join(map(str, item["loc"])) or "body", "message": item["msg"]}
        for item in error.errors(include_url=False, include_context=False)
    ]
    return refused(status, reason, detail)


def refused(status: int, reason: str, detail: list[dict[str, str]]) -> web.Response:
    return web.json_response({"error": reason, "detail": detail}, status=status)
