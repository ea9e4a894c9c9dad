"""Timer at an absolute instant of the monotonic clock, as precise as the platform allows.

Event loop timers are kept in whole milliseconds and overshoot by most of one, which would be the load generator's own
lag. On Linux a timerfd is a descriptor that becomes readable at the requested nanosecond; elsewhere the loop's timer is
used, and the lag that it causes is measured and judged like any other.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

CLOCK_MONOTONIC = 1
TFD_TIMER_ABSTIME = 1
TFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class Alarm(Protocol):
    """Calls back once at the instant it was last set to; it may also call back early."""

    def set(self, at: float) -> None:
        """Set the alarm to `at`, in seconds of `time.monotonic()`."""

    def close(self) -> None:
        """Release the alarm; it does not call back any more."""


class ItimerSpec(ctypes.Structure):
    """struct itimerspec (timerfd_create(2)): interval, then first expiration, each as seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timerfd:
    """A timerfd without an event loop: readable from the instant it was set to. Raises `OSError` where unsupported.

    It is never read: setting it anew clears its count of expirations, which saves a system call.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spec = ItimerSpec()
        self._address = ctypes.byref(self._spec)
        self.fd: int = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_FLAGS)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at: float) -> None:
        self._spec.value_s, self._spec.value_ns = divmod(max(1, int(at * 1e9)), 1_000_000_000)
        self._libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, self._address, None)

    def close(self) -> None:
        os.close(self.fd)


class TimerfdAlarm(Timerfd):
    """A timerfd watched by the event loop. Raises `OSError` where unsupported."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        super().__init__()
        self._loop = loop
        loop.add_reader(self.fd, ring)

    def close(self) -> None:
        self._loop.remove_reader(self.fd)
        super().close()


class LoopAlarm:
    """The event loop's own timer: available everywhere, a millisecond or two late."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        self.close()
        self._handle = self._loop.call_later(max(0.0, at - time.monotonic()), self._ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def open_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    """The most precise alarm of the platform."""
    if sys.platform == "linux":
        try:
            return TimerfdAlarm(loop, ring)
        except (OSError, AttributeError):  # a sandbox without the call, a C library without the symbol
            pass
    return LoopAlarm(loop, ring)
