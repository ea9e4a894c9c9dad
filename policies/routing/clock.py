"""Where the time comes from: handed in, so that a test or a simulation can be its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from: the machine, a simulation or a test."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...


class MonotonicClock:
    """The machine's."""

    def __init__(self) -> None:
        self.now = time.monotonic  # the builtin itself: a method around it would double its cost
