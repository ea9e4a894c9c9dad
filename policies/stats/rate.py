"""Rate meter: events per second over the last few seconds.

Time is an argument, and a read changes nothing.
"""

from __future__ import annotations

from math import exp

TAU = 3.0
"""Seconds after which an event counts 1/e: long enough to count slow workers, short enough to follow a stall."""

LEAST_SPAN = 0.5
"""Shortest span in seconds that a rate is computed over: the first two events, a millisecond apart, are not a thousand
a second."""


class RateMeter:
    """Events per second since `begin`, each weighted by e^(−age/TAU).

    The weighted count is divided by the weight of the whole time since `began_at`, so the rate is not underestimated in
    the first seconds.
    """

    def __init__(self) -> None:
        self._count = 0.0
        self._at = self.began_at = 0.0

    def begin(self, now: float) -> None:
        """Start again at `now` without events."""
        self._count = 0.0
        self._at = self.began_at = now

    def count(self, now: float) -> None:
        """Count one event at the time `now`."""
        self._count = self._faded(now) + 1.0
        self._at = now

    def read(self, now: float) -> float:
        """Return events per second; 0 without events."""
        span = max(LEAST_SPAN, now - self.began_at)
        return self._faded(now) / (TAU * (1.0 - exp(-span / TAU)))

    def _faded(self, now: float) -> float:
        age = now - self._at
        return self._count * exp(-age / TAU) if age > 0.0 else self._count
