"""What the supervisor knows of one of its processes.

Rule of this file: one that lives is left alone, one that dies is started again: at once if it had lived for a while,
and after a longer and longer time if it had not.
"""

from __future__ import annotations

import os
import time

STEADY = 10.0
"""Seconds of life after which a death is no sign that the next process will die, too."""

DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before another start, after so many deaths in a row."""


class Child:
    """`pid` is None while it does not run, `due_at` the instant of its next start; `pipe` is what it says that it is
    ready on."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid: int | None = None
        self.due_at: float | None = 0.0
        self.pipe: int | None = None
        self.is_ready = False
        self._deaths = 0
        self._started_at = 0.0

    def is_due(self, now: float) -> bool:
        """Whether it is to be started."""
        return self.due_at is not None and now >= self.due_at

    def started(self, pid: int, pipe: int) -> None:
        """It runs."""
        self.pid, self.pipe, self.due_at = pid, pipe, None
        self._started_at = time.monotonic()

    def hear(self) -> None:
        """Its pipe has something, or has ended."""
        if self.pipe is not None:
            self.is_ready = os.read(self.pipe, 16) != b""
            self._hang_up()

    def _hang_up(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    def ended(self) -> int | None:
        """Its exit code if it has ended, negative for a signal; None if it runs, or does not."""
        if self.pid is None:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def gone(self) -> float:
        """It has ended; returns the seconds until it is started again."""
        now = time.monotonic()
        if now - self._started_at >= STEADY:
            self._deaths = 0
        delay = DELAYS[min(self._deaths, len(DELAYS) - 1)]
        self._deaths += 1
        self.pid, self.is_ready, self.due_at = None, False, now + delay
        self._hang_up()
        return delay
