"""The supervisor's state of one child process, with its restart delay.

A child that dies is restarted at once if it ran for `MIN_UPTIME` seconds, otherwise after a delay that grows with each
death in a row.
"""

from __future__ import annotations

import os
import time

MIN_UPTIME = 10.0
"""Seconds of uptime after which a death does not count as one in a row."""

DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Delay in seconds before a restart, by the number of deaths in a row."""


class Child:
    """A child process; `pid` is None while it does not run, `due_at` the time of its next start, `pipe` the read end of
    its readiness pipe.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid: int | None = None
        self.due_at: float | None = 0.0
        self.pipe: int | None = None
        self.is_ready = False
        self._deaths = 0
        self._started_at = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether the child is to be started now."""
        return self.due_at is not None and now >= self.due_at

    def started(self, pid: int, pipe: int) -> None:
        """Register the started process."""
        self.pid, self.pipe, self.due_at = pid, pipe, None
        self._started_at = time.monotonic()

    def hear(self) -> None:
        """Read the readiness pipe, which is readable or closed."""
        if self.pipe is not None:
            self.is_ready = os.read(self.pipe, 16) != b""
            self._close_pipe()

    def _close_pipe(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    def ended(self) -> int | None:
        """Reap the child; return its exit code if it has ended, negative for a signal, else None."""
        if self.pid is None:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def gone(self) -> float:
        """Register the end of the process; return the seconds until its restart."""
        now = time.monotonic()
        if now - self._started_at >= MIN_UPTIME:
            self._deaths = 0
        delay = DELAYS[min(self._deaths, len(DELAYS) - 1)]
        self._deaths += 1
        self.pid, self.is_ready, self.due_at = None, False, now + delay
        self._close_pipe()
        return delay
