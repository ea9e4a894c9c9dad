"""Where a worker serves: slots and a line before them, or processors that all share.

Rule of this file: no event and no randomness. Instants and amounts of work go in, instants come out; work and idleness
are added up on the way, so that utilisation can be checked against what went in.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final

FULL: Final = -1.0
"""What `admit` says when there is no room."""

_replace: Final = heapreplace

FORGOTTEN: Final = 1000
"""Starts that lie in the past and are kept all the same: to take out each by itself costs more."""


class Slots:
    """First come, first served by `count` slots; at most `queue` wait. Admission is arithmetic, as in
    `workers.service`, of which this is the same rule, made for being compiled: a start is known on arrival.

    `work` is the seconds of service ever admitted, `idle` those that slots stood free between two services. `lost` is
    what was taken away again, `stopped` what pauses have added.
    """

    def __init__(self, count: int, queue: float) -> None:
        self.count = count
        self.queue = queue
        self.work = self.idle = self.lost = self.stopped = 0.0
        self.admitted = 0
        self.free_at = 0.0  # of the only slot, or of the one that is free first
        self._free = [0.0] * count  # a heap, used where there are several
        self._is_bounded = queue < inf
        self._starts: list[float] = []  # of those that wait, the first at `_first`
        self._first = 0

    def admit(self, now: float, seconds: float) -> float:
        """When a request that brings so much work will be served; `FULL` if it cannot even wait."""
        free_at = self.free_at
        if free_at > now:
            if self._is_bounded:
                if self.waiting(now) >= self.queue:
                    return FULL
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
        """How many have not begun."""
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
        """Seconds until a request that came now would begin."""
        return self.free_at - now if self.free_at > now else 0.0

    def _all_free(self) -> list[float]:
        return [self.free_at] if self.count == 1 else self._free

    def busy_seconds(self, now: float) -> float:
        """Slot-seconds spent serving until `now`."""
        ahead = sum(free_at - now for free_at in self._all_free() if free_at > now)
        return self.work + self.stopped - self.lost - ahead

    def pause(self, now: float, until: float) -> None:
        """Nothing goes on before `until`: whatever had not ended ends that much later."""
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
        """All that was here is gone."""
        self.lost += sum(free_at - now for free_at in self._all_free() if free_at > now)
        self._set([free_at if free_at < now else now for free_at in self._all_free()])
        self._starts.clear()
        self._first = 0

    def _set(self, free: list[float]) -> None:
        heapify(free)
        self._free = free
        self.free_at = free[0]

    def error(self) -> float:
        """By how much, relatively, time spent and work done differ: slots have either worked or stood free."""
        spent = sum(self._all_free())
        told = self.work + self.idle + self.stopped - self.lost
        return abs(spent - told) / (1.0 + abs(spent))


class Shared:
    """Processor sharing: `count` processors are shared by all that are present, each of whom uses one at most.

    Worked out in the time of a request's own progress: `_progress` grows by `rate` per second, and whoever came at
    progress p with w seconds of work leaves at p + w.
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
        """Seconds of work that each gets per second."""
        present = len(self._leaving)
        return self.count / present if present > self.count else 1.0

    def advance(self, now: float) -> None:
        """Let time go by until `now`, in which nobody leaves."""
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
        """Let a request in, under a `number` of its own; returns whether there was room."""
        self.advance(now)
        if len(self._leaving) >= self.count + self.queue:
            return False
        heappush(self._leaving, (self._progress + seconds, number))
        self.work += seconds
        self.admitted += 1
        return True

    def next_at(self) -> float:
        """When the next one leaves if nobody comes; `inf` if nobody is here."""
        if not self._leaving:
            return inf
        left = self._leaving[0][0] - self._progress
        return self._at + (left / self.rate if left > 0.0 else 0.0)

    def leave(self, now: float) -> int:
        """The next one has been served: its number."""
        self.advance(now)
        self._progress = self._leaving[0][0]  # not a rounding less
        return heappop(self._leaving)[1]

    def remaining(self, now: float) -> float:
        """Seconds of work that are here, per processor."""
        self.advance(now)
        return sum(at - self._progress for at, _ in self._leaving) / self.count

    def busy_seconds(self, now: float) -> float:
        """Processor-seconds spent until `now`."""
        self.advance(now)
        return self.done

    def pause(self, now: float, until: float) -> None:
        """Nothing goes on before `until`."""
        self.advance(now)
        self._at = until

    def clear(self, now: float) -> None:
        """All that was here is gone."""
        self.lost += self.remaining(now) * self.count
        self._leaving.clear()

    def error(self) -> float:
        """By how much, relatively, work done and work brought differ. Only when all have left."""
        return abs(self.done + self.lost - self.work) / (1.0 + self.work)
