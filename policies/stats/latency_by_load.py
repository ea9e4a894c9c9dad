"""How long an endpoint takes when it has so many requests.

Rule of this file: samples are kept by how busy the endpoint was when the request was sent, a few per degree, and the
median of those nearest to the load asked for is the answer. A mean over all loads takes a worker that was busy a moment
ago for a slow one; Prequal without this is much worse (NSDI 2024, section 4.1 and figure 9). So it is with how busy it
was when the answer came: whoever is last to leave a queue has waited longest, and leaves nobody behind.

Degrees are 0, 1, 2, 3 requests, and then two per doubling.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

KEEP: Final = 15
"""Samples per degree: a median that one outlier, or two, does not move."""

FORGET_AFTER: Final = 10.0
"""Seconds without a sample after which a degree is not known. Until then it fades, in proportion: an endpoint that is
avoided cannot show that it is quick, so one that seemed a little slower is tried again soon, and one that was much
slower late."""


def degree(in_flight: int) -> int:
    """The degree of a load."""
    if in_flight < 4:
        return max(0, in_flight)
    bits = in_flight.bit_length()
    return 2 * bits - 2 + ((in_flight >> (bits - 2)) & 1)


class Degree:
    """Samples at one degree: their `median` in seconds, and when the last one came."""

    __slots__ = ("_next", "_samples", "_sorted", "at", "median")

    def __init__(self) -> None:
        self.at = self.median = 0.0
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._samples: list[float] = []
        self._sorted: list[float] = []
        self._next = 0

    def add(self, seconds: float, now: float) -> None:
        """One more, instead of the oldest where there are enough."""
        samples, ordered = self._samples, self._sorted
        if len(samples) < KEEP:
            samples.append(seconds)
        else:
            del ordered[bisect_left(ordered, samples[self._next])]
            samples[self._next] = seconds
            self._next = (self._next + 1) % KEEP
        insort(ordered, seconds)
        self.median = ordered[len(ordered) // 2]
        self.at = now


class LatencyByLoad:
    """Recent latencies of one endpoint."""

    __slots__ = ("_degrees",)

    def __init__(self) -> None:
        self._degrees: dict[int, Degree] = {}

    def record(self, in_flight: int, seconds: float, now: float) -> None:
        """One request took so long among so many."""
        key = degree(in_flight)
        here = self._degrees.get(key)
        if here is None:
            here = self._degrees[key] = Degree()
        elif now - here.at >= FORGET_AFTER:
            here.clear()
        here.add(seconds, now)

    def read(self, in_flight: int, now: float) -> float | None:
        """Seconds at that load, or at the nearest that is known; None where none is."""
        key = degree(in_flight)
        here = self._degrees.get(key)
        if here is None or now - here.at >= FORGET_AFTER:
            here = self._nearest(key, now)
            if here is None:
                return None
        return here.median * (1.0 - (now - here.at) / FORGET_AFTER)

    def _nearest(self, key: int, now: float) -> Degree | None:
        nearest, found = 1000, None
        for other, there in self._degrees.items():
            distance = abs(other - key)
            if distance < nearest and now - there.at < FORGET_AFTER:
                nearest, found = distance, there
        return found
