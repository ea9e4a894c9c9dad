"""Clocks. The time is passed in, so that a test or a simulation can supply its own."""

from __future__ import annotations

import time
from typing import Final, Protocol

SWEEP_PERIOD: Final = 0.25
"""Seconds between two sweeps of the balancer, which enforce its timeouts: a tenth of the shortest default timeout."""


class Clock(Protocol):
    """Source of time: the machine, a simulation or a test."""

    def now(self) -> float:
        """Return monotonic seconds since an arbitrary time."""
        ...


class MonotonicClock:
    """The clock of the machine, `time.monotonic`."""

    def __init__(self) -> None:
        self.now = time.monotonic  # the builtin itself: a method around it would double its cost


cpu_time = time.thread_time
"""CPU time of the thread in seconds: it does not grow while the machine does something else. A call is a system call.
"""
