"""A one-shot timer for an absolute time of the monotonic clock, with the best precision of the platform.

Event-loop timers are kept in whole milliseconds (asyncio rounds the poll timeout up, libuv stores integers) and
overshoot by about 0.8 ms; a Linux timerfd is a descriptor that becomes readable at the nanosecond asked for.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

Ring = Callable[[], None]
SetTime = Callable[[int, int], None]  # descriptor, absolute nanoseconds or 0 to disarm


class Alarm(Protocol):
    """A one-shot timer. It may ring early or spuriously, so the callback must read the clock."""

    def set(self, at: float | None) -> None:
        """Ring at `at`, seconds of `time.monotonic()`; None disarms it. Replaces the previous setting."""

    def close(self) -> None:
        """Disarm the timer and free its resources."""


class TimerfdAlarm:
    """An alarm on a timerfd (timerfd_create(2)), Linux only.

    The descriptor is never read: setting it again resets the expiration count, which saves a system call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Ring, fd: int, set_time: SetTime) -> None:
        self._loop = loop
        self._fd = fd
        self._set_time = set_time
        loop.add_reader(fd, ring)

    def set(self, at: float | None) -> None:
        self._set_time(self._fd, 0 if at is None else max(1, int(at * 1e9)))

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


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
    """Return the most precise alarm that this platform and interpreter offer."""
    timerfd = _open_timerfd()
    return LoopAlarm(loop, ring) if timerfd is None else TimerfdAlarm(loop, ring, *timerfd)


if sys.platform == "linux" and sys.version_info >= (3, 13):

    def _set_time(fd: int, at_ns: int) -> None:
        os.timerfd_settime_ns(fd, flags=os.TFD_TIMER_ABSTIME, initial=at_ns)

    def _open_timerfd() -> tuple[int, SetTime] | None:
        fd = os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)
        return fd, _set_time

else:
    _TFD_TIMER_ABSTIME = 1
    _TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC if sys.platform == "linux" else 0

    class _Itimerspec(ctypes.Structure):
        """struct itimerspec: interval and first expiration, each as seconds and nanoseconds."""

        _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]

    def _open_timerfd() -> tuple[int, SetTime] | None:
        # Where long is 32 bits wide, time_t may not be: the structure would be wrong.
        if sys.platform != "linux" or sys.maxsize < 2**32:
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "timerfd_create"):
            return None
        fd = libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_FLAGS)
        return None if fd < 0 else (fd, _set_time_through(libc))

    def _set_time_through(libc: ctypes.CDLL) -> SetTime:
        value = _Itimerspec()
        reference = ctypes.byref(value)

        def set_time(fd: int, at_ns: int) -> None:
            value.first_s, value.first_ns = divmod(at_ns, 1_000_000_000)
            if libc.timerfd_settime(fd, _TFD_TIMER_ABSTIME, reference, None):
                raise OSError(ctypes.get_errno(), "timerfd_settime failed")

        return set_time
