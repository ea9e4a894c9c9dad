"""Service stations of a worker: slots with a queue, or processor sharing.

No events and no randomness: instants and amounts of work go in, instants come out. Work and idle time are accumulated,
so that utilisation can be checked against the admitted work.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final

NO_ROOM: Final = -1.0
"""Result of `admit` when there is no room."""

_replace: Final = heapreplace

FORGOTTEN: Final = 1000
"""Number of past start instants that are kept before they are deleted together, which is cheaper than one by one."""


class Slots:
    """First-come, first-served queue with `count` slots; at most `queue` requests wait.

    Admission is arithmetic: the start is known on arrival. It is the same rule as in `workers.service`, written so that
    it can be compiled. `work` is the total admitted service in seconds, `idle` the time that slots were free between
    two services. `lost` is work that was removed, `stopped` time added by pauses.
    """

    def __init__(self, count: int, queue: float) -> None:
        self.count = count
        self.queue = queue
        self.work = self.idle = self.lost = self.stopped = 0.0
        self.admitted = 0
        self.free_at = 0.0  # of the only slot, or of the first free one
        self._free = [0.0] * count  # a heap, used where there are several
        self._is_bounded = queue < inf
        self._starts: list[float] = []  # of the waiting requests, the first at `_first`
        self._first = 0

    def admit(self, now: float, seconds: float) -> float:
        """Finish instant of a request with `seconds` of work; `NO_ROOM` if the queue has no room."""
        free_at = self.free_at
        if free_at > now:
            if self._is_bounded:
                if self.waiting(now) >= self.queue:
                    return NO_ROOM
                self._starts.append(free_at)
        else:
            self.idle += now - free_at
            free_at = now
        finish_at = free_at + seconds
        self.work += seconds
        self.admitted += 1
        if self.count == 1:
            self.free_at = finish_at
        else:
            _replace(self._free, finish_at)
            self.free_at = self._free[0]
        return finish_at

    def waiting(self, now: float) -> int:
        """Number of requests that have not begun."""
        starts, first = self._starts, self._first
        end = len(starts)
        while first < end and starts[first] <= now:
            first += 1
        if first > FORGOTTEN:
            del starts[:first]
            end -= first
            first = 0
        self._first = first
        return end - first

    def remaining(self, now: float) -> float:
        """Seconds until a request that arrives now would begin."""
        return self.free_at - now if self.free_at > now else 0.0

    def _all_free(self) -> list[float]:
        return [self.free_at] if self.count == 1 else self._free

    def free_slots(self) -> list[float]:
        """When each slot is free after the requests admitted so far: a new heap."""
        return list(self._all_free())

    def busy_seconds(self, now: float) -> float:
        """Total slot-seconds spent serving until `now`."""
        ahead = sum(free_at - now for free_at in self._all_free() if free_at > now)
        return self.work + self.stopped - self.lost - ahead

    def pause(self, now: float, until: float) -> None:
        """Suspend service until `until`: everything in progress ends that much later."""
        later = until - now
        free = []
        for free_at in self._all_free():
            if free_at > now:
                self.stopped += later
                free.append(free_at + later)
            else:
                self.idle += until - free_at
                free.append(until)
        self._set(free)
        self._starts = [start + later for start in self._starts if start > now]
        self._first = 0

    def clear(self, now: float) -> None:
        """Remove all requests; their remaining work counts as `lost`."""
        self.lost += sum(free_at - now for free_at in self._all_free() if free_at > now)
        self._set([free_at if free_at < now else now for free_at in self._all_free()])
        self._starts.clear()
        self._first = 0

    def _set(self, free: list[float]) -> None:
        heapify(free)
        self._free = free
        self.free_at = free[0]

    def error(self) -> float:
        """Relative difference between elapsed time and the sum of work and idle time."""
        spent = sum(self._all_free())
        accounted = self.work + self.idle + self.stopped - self.lost
        return abs(spent - accounted) / (1.0 + abs(spent))


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
