"""Real sockets in virtual time: when nobody has anything left to do, it is the instant of the next deadline.

Rule of this file: computing takes no time, only waiting does. So durations are what the worker means them to be, to
the microsecond, however busy the machine is. Whatever is not on the loop (a thread, another process) would be passed
over: tests that need one are marked `real_time`.
"""

from __future__ import annotations

import asyncio
import selectors

DELIVERY = 0.005
"""Seconds of real time without an event after which nothing is taken to be on its way between two sockets of ours. The
kernel delivers on loopback within the call that sends; this is for the rare time that it puts that off."""

TICK = 1e-9
"""Past each deadline, so that adding fractions never ends just short of it."""


EXACTLY = 1e-6
"""Seconds that durations may be off by those ticks."""


class Clock:
    """Seconds, as `time.monotonic()` tells them; they pass when `now` is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        events = super().select(DELIVERY)
        if not events:
            self._clock.now += timeout + TICK
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose time is the clock's, which it moves."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._clock.now
