"""Virtual clock and event queue.

Time advances only when the next event is taken, and events at the same instant run in the order in which they were
added. A run is therefore a function of its model and its seed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

_push: Final = heappush
_pop: Final = heappop


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


class EventQueue:
    """Event queue: a heap of instants, and the event of each.

    The heap compares floats only, which costs a fraction of comparing tuples. Further events of the same instant, which
    are rare, are kept in a queue of their own.
    """

    def __init__(self) -> None:
        self.instants: list[float] = []
        self._events: dict[float, Event] = {}
        self._more: dict[float, deque[Event]] = {}

    def add(self, at: float, event: Event) -> None:
        """Schedule `event` at the instant `at`. O(log n)."""
        events = self._events
        if at in events:
            line = self._more.get(at)
            if line is None:
                self._more[at] = deque((event,))
            else:
                line.append(event)
        else:
            events[at] = event
            _push(self.instants, at)

    def take(self) -> Event:
        """Remove and return the next event, whose instant is `instants[0]`; in insertion order within an instant."""
        instants = self.instants
        if self._more and instants[0] in self._more:
            return self._take_first(instants[0])
        at, events = _pop(instants), self._events
        event = events[at]
        del events[at]
        return event

    def _take_first(self, at: float) -> Event:
        line, event = self._more[at], self._events[at]
        self._events[at] = line.popleft()
        if not line:
            del self._more[at]
        return event
