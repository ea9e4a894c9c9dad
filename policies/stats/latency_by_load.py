"""Latency of an endpoint as a function of its requests in flight, as Prequal estimates it.

A few samples are kept per degree of load at which the request was sent, and the median of the degree nearest to the
load asked for is the estimate. A mean over all loads takes a worker that was busy a moment ago for a slow one; Prequal
without this is much worse (NSDI 2024, section 4.1 and figure 9). So does the load at the time of the response: the last
request to leave a queue has waited longest, and leaves an empty queue.

Degrees are 0, 1, 2, 3 requests, and then two per doubling.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from typing import Final

SAMPLES_PER_DEGREE: Final = 15
"""Samples per degree: a median that one outlier, or two, does not move."""

FORGET_AFTER: Final = 10.0
"""Seconds without a sample after which a degree is unknown. Until then its estimate decays in proportion: an endpoint
that is avoided cannot show that it is fast, so one that seemed a little slower is tried again soon, and one that was
much slower late."""


def degree(in_flight: int) -> int:
    """Return the degree of a load."""
    if in_flight < 4:
        return max(0, in_flight)
    bits = in_flight.bit_length()
    return 2 * bits - 2 + ((in_flight >> (bits - 2)) & 1)


class Degree:
    """Samples at one degree: their `median` in seconds, and the time `at` of the last one."""

    def __init__(self) -> None:
        self.at = self.median = 0.0
        self.clear()

    def clear(self) -> None:
        """Discard all samples of this degree."""
        self._samples: list[float] = []
        self._sorted: list[float] = []
        self._next = 0

    def add(self, seconds: float, now: float) -> None:
        """Add a sample; it replaces the oldest of SAMPLES_PER_DEGREE."""
        samples, ordered = self._samples, self._sorted
        if len(samples) < SAMPLES_PER_DEGREE:
            samples.append(seconds)
        else:
            del ordered[bisect_left(ordered, samples[self._next])]
            samples[self._next] = seconds
            self._next = (self._next + 1) % SAMPLES_PER_DEGREE
        insort(ordered, seconds)
        self.median = ordered[len(ordered) // 2]
        self.at = now


class LatencyByLoad:
    """Recent latencies of one endpoint by degree of load."""

    def __init__(self) -> None:
        self._degrees: defaultdict[int, Degree] = defaultdict(Degree)

    def record(self, in_flight: int, seconds: float, now: float) -> None:
        """Record that a request sent with `in_flight` others took `seconds`."""
        here = self._degrees[degree(in_flight)]
        if now - here.at >= FORGET_AFTER:
            here.clear()
        here.add(seconds, now)

    def read(self, in_flight: int, now: float) -> float | None:
        """Return the estimated seconds at that load, from the nearest known degree; None if no degree is known."""
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
