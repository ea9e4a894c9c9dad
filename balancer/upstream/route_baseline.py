"""What is usual for a route, and whether it departs from that.

Rule of this file: no I/O and no clock. One slow answer is chance, so a departure needs every observation of a while to
be too high, that is the least of them: a packet that was lost now and then never makes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import exp
from statistics import median

FIRST = 5
"""Observations whose median is the first norm: the very first meets cold caches."""

FEWEST = 5
"""Observations that a change needs, however long it lasts: where one packet in ten is lost, so many in a row are lost
once in eleven days, by one connection in ten seconds."""

MOST = 0.2
"""Weight of one observation at most, however long ago the last one was."""


class Change(Enum):
    """What an observation has shown."""

    DEPARTED = "departed"
    RETURNED = "returned"
    SETTLED = "settled"  # it has departed for so long that this is usual now


@dataclass(frozen=True, slots=True)
class BaselineRules:
    """A departure: `factor` times the norm and `least` seconds above it, for `lasting` seconds; twice as far, for half
    of that. The norm follows what is usual within `memory` seconds, and a departure becomes it after `settling`."""

    factor: float = 2.0
    least: float = 0.005
    lasting: float = 60.0
    memory: float = 600.0
    settling: float = 3600.0


class Baseline:
    """One measure of one route, in seconds. `norm` is None while it is being learned, `last` before anything is
    known."""

    def __init__(self) -> None:
        self.norm: float | None = None
        self.last: float | None = None
        self.is_departed = False
        self._first: list[float] = []
        self._at = 0.0  # of the last observation
        self._turned_at = 0.0  # when the other side of the bound was first seen
        self._turned = 0  # observations there since
        self._departed_at = 0.0
        self._lowest = 0.0  # while it was away

    def observe(self, value: float, rules: BaselineRules, now: float) -> Change | None:
        """One more connection took `value` seconds."""
        before, self._at = self._at, now
        self.last = value
        if self.norm is None:
            self._learn(value)
            return None
        is_high = value >= self.norm * rules.factor and value >= self.norm + rules.least
        if is_high != self.is_departed:
            return self._turning(value, rules, now)
        self._turned = 0
        if self.is_departed:
            return self._stay_away(value, rules, now)
        self.norm += (value - self.norm) * min(1 - exp(-(now - before) / rules.memory), MOST)
        return None

    def _learn(self, value: float) -> None:
        self._first.append(value)
        if len(self._first) == FIRST:
            self.norm = median(self._first)
            self._first.clear()

    def _turning(self, value: float, rules: BaselineRules, now: float) -> Change | None:
        if not self._turned:
            self._turned_at = now
            self._lowest = value
        self._turned += 1
        self._lowest = min(self._lowest, value)
        if self._turned < FEWEST or now - self._turned_at < self._needed(rules):
            return None
        self._turned = 0
        self.is_departed = not self.is_departed
        self._departed_at = now
        return Change.DEPARTED if self.is_departed else Change.RETURNED

    def _needed(self, rules: BaselineRules) -> float:
        """Seconds: the further it departs, the less chance there is in it."""
        assert self.norm is not None
        return rules.lasting if self.is_departed else rules.lasting * rules.factor * self.norm / self._lowest

    def _stay_away(self, value: float, rules: BaselineRules, now: float) -> Change | None:
        self._lowest = min(self._lowest, value)
        if now - self._departed_at < rules.settling:
            return None
        self.norm, self.is_departed = self._lowest, False
        return Change.SETTLED
