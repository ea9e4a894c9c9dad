"""Route baseline: the usual duration of a connect phase, and detection of lasting departures from it.

A departure requires every observation of a period to be too high, that is, their minimum, so a packet lost now and then
never causes one. Pure: no I/O, no clock.
"""

from __future__ import annotations

from enum import Enum
from math import exp
from statistics import median

from balancer.config.schema.names import RouteWatchConfig

INITIAL_OBSERVATIONS = 5
"""Number of observations whose median is the initial baseline; the very first one meets cold caches."""

MIN_OBSERVATIONS = 5
"""Minimum number of observations for a change, whatever the time they span. Where one packet in ten is lost, so many in
a row are lost once in eleven days, with one connection per ten seconds."""

MAX_WEIGHT = 0.2
"""Maximum weight of one observation, however long ago the previous one was."""

MEMORY_S = 600.0
"""Time constant with which the baseline follows observations."""

SETTLING_S = 3600.0
"""Time after which a departure becomes the baseline."""


class BaselineChange(Enum):
    """Change of state that an observation causes."""

    DEPARTED = "departed"
    RETURNED = "returned"
    SETTLED = "settled"  # departed for so long that it becomes the baseline


class Baseline:
    """Baseline of one measure of one route, in seconds. `norm`: the baseline, None while it is being learned. `last`:
    last observation, None before the first.

    A departure is at least `factor` times the baseline and `minimum` above it for `duration`; half of that time
    suffices at twice the distance.
    """

    def __init__(self) -> None:
        self.norm: float | None = None
        self.last: float | None = None
        self.is_departed = False
        self._first: list[float] = []
        self._at = 0.0  # time of the last observation
        self._turned_at = 0.0  # time of the first observation across the bound
        self._turned = 0  # consecutive observations across the bound
        self._departed_at = 0.0
        self._lowest = 0.0  # lowest observation since then

    def observe(self, value: float, config: RouteWatchConfig, now: float) -> BaselineChange | None:
        """Record one observation in seconds; returns the change that it causes, if any."""
        before, self._at = self._at, now
        self.last = value
        if self.norm is None:
            self._learn(value)
            return None
        is_high = value >= self.norm * config.factor and value >= self.norm + config.minimum
        if is_high != self.is_departed:
            return self._observe_crossing(value, config, now)
        self._turned = 0
        if self.is_departed:
            return self._observe_departed(value, config, now)
        self.norm += (value - self.norm) * min(1 - exp(-(now - before) / MEMORY_S), MAX_WEIGHT)
        return None

    def _learn(self, value: float) -> None:
        self._first.append(value)
        if len(self._first) == INITIAL_OBSERVATIONS:
            self.norm = median(self._first)
            self._first.clear()

    def _observe_crossing(self, value: float, config: RouteWatchConfig, now: float) -> BaselineChange | None:
        if not self._turned:
            self._turned_at = now
            self._lowest = value
        self._turned += 1
        self._lowest = min(self._lowest, value)
        if self._turned < MIN_OBSERVATIONS or now - self._turned_at < self._needed(config):
            return None
        self._turned = 0
        self.is_departed = not self.is_departed
        self._departed_at = now
        return BaselineChange.DEPARTED if self.is_departed else BaselineChange.RETURNED

    def _needed(self, config: RouteWatchConfig) -> float:
        """Seconds that a change must last: fewer the further the observations depart, as chance then explains them
        less."""
        assert self.norm is not None
        return config.duration * (1.0 if self.is_departed else config.factor * self.norm / self._lowest)

    def _observe_departed(self, value: float, config: RouteWatchConfig, now: float) -> BaselineChange | None:
        self._lowest = min(self._lowest, value)
        if now - self._departed_at < SETTLING_S:
            return None
        self.norm, self.is_departed = self._lowest, False
        return BaselineChange.SETTLED
