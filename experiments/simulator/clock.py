"""Virtual clock and event queue.

Time advances only when the next event is taken, and events at the same instant run in the order in which they were
added. A run is therefore a function of its model and its seed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from math import floor, inf
from operator import attrgetter
from typing import Final

from policies.clock import SWEEP_PERIOD

_instant: Final = attrgetter("at")


def next_sweep(after: float) -> float:
    """Instant of the first sweep of a balancer after that instant; sweeps enforce its timeouts."""
    return (floor(after / SWEEP_PERIOD) + 1.0) * SWEEP_PERIOD


class VirtualClock:
    """Clock of a simulated router: `at` is the instant of the current event, in seconds from the start."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        """Current virtual time in monotonic seconds."""
        return self.at


class Event:
    """Base class of events that the agenda executes."""

    @abstractmethod
    def fire(self, now: float) -> None:
        """Execute the event at the instant `now`."""


class Call(Event):
    """Event that calls a function with the instant."""

    def __init__(self, what: Callable[[float], None]) -> None:
        self._what = what

    def fire(self, now: float) -> None:
        self._what(now)


class Scheduled:
    """An event and its instant."""

    __slots__ = ("at", "event")

    def __init__(self, at: float, event: Event) -> None:
        self.at = at
        self.event = event


class EventQueue:
    """Events in the order of their instants, those of one instant in the order of their scheduling.

    `next_at` is the instant of the next event, `inf` without one. That event is held apart. `_soon` has those until
    `_horizon`, sorted, the first one last; `_later` has the others in the order of scheduling. When `_soon` is empty,
    about a quarter of `_later` is moved there. Per event that costs a third of a heap.
    """

    def __init__(self) -> None:
        self.next_at = self._horizon = inf
        self._next: Scheduled | None = None
        self._soon: list[Scheduled] = []
        self._later: list[Scheduled] = []

    def add(self, at: float, event: Event) -> None:
        """Schedule `event` at the instant `at`."""
        scheduled = Scheduled(at, event)
        if at >= self._horizon:
            self._later.append(scheduled)
        elif at >= self.next_at:
            self._insert(scheduled)
        else:
            if self._next is None:
                self._horizon = at
            else:
                self._soon.append(self._next)
            self._next, self.next_at = scheduled, at

    def take(self) -> Event:
        """Remove and return the next event, whose instant is `next_at`."""
        taken = self._next
        assert taken is not None
        if not self._soon and self._later:
            self._refill()
        if self._soon:
            self._next = following = self._soon.pop()
            self.next_at = following.at
        else:
            self._next, self.next_at, self._horizon = None, inf, inf
        return taken.event

    def _insert(self, scheduled: Scheduled) -> None:
        """Insert into `_soon`, after those of the same instant."""
        soon, at = self._soon, scheduled.at
        low, high = 0, len(soon)
        while low < high:
            middle = (low + high) >> 1
            low, high = (middle + 1, high) if soon[middle].at > at else (low, middle)
        soon.insert(low, scheduled)

    def _refill(self) -> None:
        soon, rest, later = list[Scheduled](), list[Scheduled](), self._later
        sample = sorted([one.at for one in later[:: max(1, len(later) // 16)]])
        horizon = sample[len(sample) // 4]
        for one in later:
            if one.at <= horizon:
                soon.append(one)
            else:
                rest.append(one)
        soon.sort(key=_instant)
        soon.reverse()
        self._soon, self._later, self._horizon = soon, rest, horizon
