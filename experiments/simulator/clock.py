"""Virtual time, and what is to happen in it.

Rule of this file: time moves only when the next event is taken, and two events of one instant happen in the order in
which they were put down. So a run is a function of its model and its seed.
"""

from __future__ import annotations

from heapq import heappush


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


class Agenda:
    """What is to happen: a heap of (instant, number, event). The number breaks ties, so events are never compared."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Event]] = []
        self.count = 0

    def add(self, at: float, event: Event) -> None:
        """Let `event` happen at the instant `at`."""
        self.count = count = self.count + 1
        heappush(self.heap, (at, count, event))
