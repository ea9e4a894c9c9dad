"""A growing sum as it was some time ago: what had been waited for when the answers that arrive now were sent."""

from __future__ import annotations

from typing import Final

STEP: Final = 0.125
"""Least time between two stored values, as a part of the delay. Between them the sum is interpolated."""


class DelayedSum:
    """Stored values of a sum that grows with time, none older than the delay needs."""

    def __init__(self) -> None:
        self._times = list[float]()
        self._values = list[float]()

    def store(self, value: float, delay: float, now: float) -> None:
        """Store the sum, unless the last stored value is recent."""
        times = self._times
        if delay and (not times or now - times[-1] >= STEP * delay):
            times.append(now)
            self._values.append(value)

    def before(self, value: float, delay: float, now: float) -> float:
        """Return what the sum, which is `value` now, was `delay` seconds ago."""
        times, values, then = self._times, self._values, now - delay
        while len(times) > 1 and times[1] <= then:
            del times[0], values[0]
        if not delay or not times:
            return value
        begin, end, first, last = times[0], now, values[0], value
        if len(times) > 1:
            end, last = times[1], values[1]
        if then <= begin or end <= begin:
            return first
        return first + (last - first) * (then - begin) / (end - begin)
