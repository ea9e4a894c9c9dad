"""Virtual time, and what is to happen in it.

Rule of this file: time moves only when the next event is taken, and two events of one instant happen in the order in
which they were put down. So a run is a function of its model and its seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

_push: Final = heappush
_pop: Final = heappop


class VirtualClock:
    """The clock of a router: `at` is the instant of the event that is happening, in seconds from the beginning."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        """Monotonic seconds."""
        return self.at


class Event:
    """Something that happens at an instant."""

    def happen(self, now: float) -> None:
        """It is time."""
        raise NotImplementedError


class Call(Event):
    """An event of whoever has no class of events: `what` is called with the instant."""

    def __init__(self, what: Callable[[float], None]) -> None:
        self._what = what

    def happen(self, now: float) -> None:
        """Call it."""
        self._what(now)


class EventQueue:
    """What is to happen: a heap of instants, and the event of each.

    Instants alone are compared, which costs a fraction of comparing tuples. Events of one instant, which are rare,
    stand in a line of their own.
    """

    def __init__(self) -> None:
        self.instants: list[float] = []
        self._events: dict[float, Event] = {}
        self._more: dict[float, deque[Event]] = {}

    def add(self, at: float, event: Event) -> None:
        """Let `event` happen at the instant `at`."""
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
        """The next event; its instant is `instants[0]`. Where several have one, the first that was put down."""
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
