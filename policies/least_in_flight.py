"""Least in flight of a few: the power of two choices.

Rule of this file: drawn without replacement. Caddy's `random_choose 2` drew with replacement and was plain
random for years, because nobody asserted a distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from policies.available import Available
from policies.facts import RequestFacts
from policies.options import at_least
from policies.state import EndpointState


class LeastInFlight:
    """The least loaded, by in-flight per weight, of a few endpoints drawn at random (power of two choices).

    Mitzenmacher, IEEE TPDS 2001: two choices instead of one turn the longest queue from log n into log log
    n, and no view of all endpoints is needed, so that many units side by side do not herd. A tie goes to
    the first drawn, which is uniform.
    """

    def __init__(self, rng: Random, *, choices: int = 2) -> None:
        self._random = rng.random
        self._sample = rng.sample
        self._choices = at_least(2, choices=choices)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """O(choices). Two choices, on the hot path of every default fallback, take no calls but the draws while nothing
        fails."""
        size = len(available)
        if size == 1:
            return available[0]
        if self._choices != 2:
            return self._best_of_more(available, now)
        random = self._random
        first = int(random() * size)
        second = int(random() * (size - 1))
        one, other = available[first], available[second if second < first else second + 1]
        if one.latency.failures or other.latency.failures:
            return other if relative_load(other, now) < relative_load(one, now) else one
        return other if other.in_flight * one.weight < one.in_flight * other.weight else one

    def _best_of_more(self, available: Available, now: float) -> EndpointState:
        drawn = self._sample(available, min(self._choices, len(available)))
        return min(drawn, key=lambda state: relative_load(state, now))


def draw_two(size: int, random: Callable[[], float]) -> tuple[int, int]:
    """Two different indices below `size` (>= 2), every ordered pair equally likely.

    `Random.sample` costs 3 µs, this a tenth of that.
    """
    first = int(random() * size)
    second = int(random() * (size - 1))
    return first, second if second < first else second + 1


FAILING = 100.0
"""Requests in flight that an endpoint which fails every request seems to have more; one that fails 1 %, one
more.

Failures are quick, so whoever fails has little in flight: counted alone, that attracts (the sinkhole).
"""


def relative_load(state: EndpointState, now: float) -> float:
    """Requests in flight per unit of weight, failures charged."""
    failed = state.latency.failure_share
    if failed and state.latency.is_measured(now):
        return (state.in_flight + FAILING * failed) / state.weight
    return state.in_flight / state.weight
