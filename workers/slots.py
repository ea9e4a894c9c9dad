"""Slots of a worker with a queue, of emulated and simulated workers alike.

No events and no randomness: instants and amounts of work go in, instants come out. Work and idle time are accumulated,
so that utilisation can be checked against the admitted work.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from math import inf
from typing import Final

NO_ROOM: Final = -1.0
"""Result of `admit` when there is no room."""

_replace: Final = heapreplace

FORGOTTEN: Final = 1000
"""Number of past start instants that are kept before they are deleted together, which is cheaper than one by one."""


class Slots:
    """First-come, first-served queue with `count` slots; at most `queue` requests wait.

    Admission is arithmetic: the start is known on arrival, so no request has to be woken when a slot becomes free.
    `now` must not decrease. `work` is the total admitted service in seconds, `idle` the time that slots were free
    between two services. `lost` is work that was removed, `stopped` time added by pauses.
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

    def room_at(self, now: float) -> float:
        """When there is room again in a full queue: the first of it begins, or without a queue a slot is free."""
        return self._starts[self._first] if self.waiting(now) else self.free_at

    def admit_later(self, now: float, seconds: float, not_before: float) -> float:
        """As `admit`, to begin no earlier than `not_before`; the slot is in use while the request waits for that."""
        ready_at = max(now, self.free_at)
        if not_before <= ready_at:
            return self.admit(now, seconds)
        if self.waiting(now) >= self.queue:
            return NO_ROOM
        self._starts.append(not_before)
        finish_at = not_before + seconds
        self.idle += ready_at - self.free_at
        self.work += finish_at - ready_at
        self.admitted += 1
        free = self.free_slots()
        _replace(free, finish_at)
        self._set(free)
        return finish_at

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
        """Suspend service until `until`: everything in progress ends that much later, and free slots are in use."""
        later = until - now
        free = []
        for free_at in self._all_free():
            if free_at > now:
                self.stopped += later
                free.append(free_at + later)
            else:
                self.idle += now - free_at
                self.work += later
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
