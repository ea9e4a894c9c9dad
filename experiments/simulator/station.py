"""Processor sharing at a worker, in place of slots with a queue.

As in `workers/slots.py`, instants and amounts of work go in, and instants come out.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf


class Shared:
    """Processor sharing: `count` processors are shared by all requests present, each using at most one.

    Computed in the time of a request's own progress: `_progress` grows by `rate` per second, and a request that arrives
    at progress p with w seconds of work leaves at p + w.
    """

    def __init__(self, count: int, queue: float) -> None:
        self.count = count
        self.queue = queue
        self.work = self.idle = self.lost = self.stopped = self.done = 0.0
        self.admitted = 0
        self._progress = 0.0
        self._at = 0.0
        self._leaving: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._leaving)

    @property
    def rate(self) -> float:
        """Seconds of work per second that each request receives."""
        present = len(self._leaving)
        return self.count / present if present > self.count else 1.0

    def advance(self, now: float) -> None:
        """Advance to `now`; no request leaves in between."""
        passed = now - self._at
        if passed <= 0.0:
            return
        present = len(self._leaving)
        if present:
            self._progress += passed * self.rate
            self.done += passed * (present if present < self.count else self.count)
        else:
            self.idle += passed
            self._progress = 0.0
        self._at = now

    def enter(self, now: float, seconds: float, number: int) -> bool:
        """Admit a request under its `number`; returns whether there was room. O(log n)."""
        self.advance(now)
        if len(self._leaving) >= self.count + self.queue:
            return False
        heappush(self._leaving, (self._progress + seconds, number))
        self.work += seconds
        self.admitted += 1
        return True

    def next_at(self) -> float:
        """Instant of the next departure if no request arrives; `inf` when empty."""
        if not self._leaving:
            return inf
        left = self._leaving[0][0] - self._progress
        return self._at + (left / self.rate if left > 0.0 else 0.0)

    def leave(self, now: float) -> int:
        """Remove the next request to leave and return its number."""
        self.advance(now)
        self._progress = self._leaving[0][0]  # exact, without rounding error
        return heappop(self._leaving)[1]

    def remaining(self, now: float) -> float:
        """Remaining seconds of work, per processor."""
        self.advance(now)
        return sum(at - self._progress for at, _ in self._leaving) / self.count

    def busy_seconds(self, now: float) -> float:
        """Total processor-seconds spent serving until `now`."""
        self.advance(now)
        return self.done

    def pause(self, now: float, until: float) -> None:
        """Suspend service until `until`; no progress is made before."""
        self.advance(now)
        self._at = until

    def clear(self, now: float) -> None:
        """Remove all requests; their remaining work counts as `lost`."""
        self.lost += self.remaining(now) * self.count
        self._leaving.clear()

    def error(self) -> float:
        """Relative difference between work admitted and the work done, lost, or left of requests still present."""
        left = sum(at - self._progress for at, _ in self._leaving)
        return abs(self.done + self.lost + left - self.work) / (1.0 + self.work)
