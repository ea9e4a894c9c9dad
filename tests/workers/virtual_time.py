"""Real sockets in virtual time: when the loop has nothing to do, the clock moves to the next deadline.

Computing takes no time, only waiting does, so durations are exact to the microsecond on any machine. Threads and
other processes are not waited for: tests with one are marked `real_time`.
"""

from __future__ import annotations

import asyncio
import selectors

DELIVERY = 0.005
"""Seconds of real time without an event after which no bytes are in flight between two sockets of this process. The
kernel delivers on loopback within the call that sends; this is for the rare delay."""

TICK = 1e-9
"""Seconds beyond each deadline, so that rounding never ends just before it."""

SERVICE = 0.001
"""Default service time in seconds."""

EXACTLY = 1e-6
"""Tolerance of durations in seconds, for those ticks."""


class Clock:
    """Replacement of `time.monotonic()`; time passes when `now` is changed."""

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
    """A loop that runs on the clock and advances it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._clock.now
