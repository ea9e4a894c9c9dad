"""Clocks. The time is passed in, so that a test or a simulation can supply its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time: the machine, a simulation or a test."""

    def now(self) -> float:
        """Return monotonic seconds."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def __init__(self) -> None:
        self.now = time.monotonic  # the builtin itself: a method around it would double its cost
