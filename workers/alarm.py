"""Timers at absolute instants of the monotonic clock, with the best precision of the platform: `Alarm` for one
instant, and `DeadlineTimer` for many on one alarm.

Event-loop timers are kept in whole milliseconds (asyncio rounds the poll timeout up, libuv stores integers) and
overshoot by about 0.8 ms, which would be the load generator's own lag; a Linux timerfd is a descriptor that becomes
readable at the nanosecond asked for.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import heapq
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol

TFD_TIMER_ABSTIME = 1
TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC

Ring = Callable[[], None]


class Alarm(Protocol):
    """A one-shot timer. It may ring early or spuriously, so the callback must read the clock."""

    def set(self, at: float | None) -> None:
        """Ring at `at`, seconds of `time.monotonic()`; None disarms it. Replaces the previous setting."""

    def close(self) -> None:
        """Disarm the timer and free its resources."""


class ItimerSpec(ctypes.Structure):
    """struct itimerspec (timerfd_create(2)): interval, then first expiration, each as seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


class Timerfd:
    """A timerfd without an event loop: `fd` is readable from the instant it was set to. Raises `OSError` where there
    is none.

    The descriptor is never read: setting it again resets the expiration count, which saves a system call.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        # Where long is 32 bits wide, time_t may not be: the structure would be wrong.
        if sys.maxsize < 2**32 or not hasattr(self._libc, "timerfd_create"):
            raise OSError(errno.ENOSYS, "timerfd_create")
        self._spec = ItimerSpec()
        self._address = ctypes.byref(self._spec)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, TFD_FLAGS)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at: float | None) -> None:
        at_ns = 0 if at is None else max(1, int(at * 1e9))
        self._spec.first_s, self._spec.first_ns = divmod(at_ns, 1_000_000_000)
        if self._libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, self._address, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        os.close(self.fd)


class TimerfdAlarm(Timerfd):
    """An alarm on a timerfd watched by the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Ring) -> None:
        super().__init__()
        self._loop = loop
        loop.add_reader(self.fd, ring)

    def close(self) -> None:
        self._loop.remove_reader(self.fd)
        super().close()


class LoopAlarm:
    """An alarm on the loop's own timers: on every platform, within a millisecond or two."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Ring) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float | None) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if at is not None:
            self._handle = self._loop.call_later(max(0.0, at - time.monotonic()), self._ring)

    def close(self) -> None:
        self.set(None)


def open_alarm(loop: asyncio.AbstractEventLoop, ring: Ring) -> Alarm:
    """Return the most precise alarm that this platform offers."""
    if sys.platform == "linux":
        try:
            return TimerfdAlarm(loop, ring)
        except OSError:  # a sandbox without the call, a C library without the symbol
            pass
    return LoopAlarm(loop, ring)


class DeadlineTimer:
    """Calls back at absolute times of `time.monotonic()`, in order of deadline, then of scheduling.

    A late callback is called at once and does not delay the following ones, so errors do not add up; one ring serves
    everything that is due. Not of `loop.time()`: uvloop's is in whole milliseconds, and cached. Belongs to one running
    loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_alarm: Callable[[asyncio.AbstractEventLoop, Callable[[], None]], Alarm] = open_alarm,
    ) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()  # breaks ties, so that equal deadlines keep their order
        self._armed_for = math.inf
        self._alarm = open_alarm(loop, self._ring)

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, at: float, callback: Callable[[], None]) -> None:
        """Call `callback` as soon as the clock reads `at`; from the loop, never from within this call."""
        heapq.heappush(self._heap, (at, next(self._order), callback))
        if at < self._armed_for:
            self._arm(at)

    async def wait_until(self, at: float) -> None:
        """Wait until `at`; return at once if that has passed."""
        if at > time.monotonic():
            woken: asyncio.Future[None] = self._loop.create_future()
            self.schedule(at, partial(_wake, woken))
            await woken

    def close(self) -> None:
        """Drop all callbacks and free the alarm."""
        self._heap.clear()
        self._alarm.close()

    def _arm(self, at: float) -> None:
        self._armed_for = at
        self._alarm.set(at if at < math.inf else None)

    def _ring(self) -> None:
        self._armed_for = -math.inf  # deadlines set by callbacks are armed once, at the end
        now = time.monotonic()  # read once: a steady flow of deadlines must not starve the loop's sockets
        while self._heap and self._heap[0][0] <= now:
            self._call(heapq.heappop(self._heap)[2])
        self._arm(self._heap[0][0] if self._heap else math.inf)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            context = {"message": "a deadline's callback failed", "exception": error}
            self._loop.call_exception_handler(context)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
