"""Least in flight of a few: the power of two choices.

Rule of this file: drawn without replacement. Caddy's `random_choose 2` drew with replacement and was plain
random for years, because nobody asserted a distribution.
"""

from __future__ import annotations

from random import Random

from policies.available import Available
from policies.explanation import ONLY_ONE, Trace
from policies.facts import RequestFacts
from policies.options import at_least
from policies.state import EndpointState
from policies.two_choices import less_loaded_of_two, note_loads, relative_load


class LeastInFlight:
    """The least loaded, by in-flight per weight, of a few endpoints drawn at random (power of two choices).

    Mitzenmacher, IEEE TPDS 2001: two choices instead of one turn the longest queue from log n into log log
    n, and no view of all endpoints is needed, so that many units side by side do not herd. A tie goes to
    the first drawn, which is uniform.
    """

    trace: Trace | None = None

    def __init__(self, rng: Random, *, choices: int = 2) -> None:
        self._random = rng.random
        self._sample = rng.sample
        self._choices = at_least(2, choices=choices)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """O(choices)."""
        if self._choices == 2:
            return less_loaded_of_two(available, self._random, now, self.trace)
        if len(available) == 1:
            if self.trace is not None:
                self.trace.note(ONLY_ONE, available)
            return available[0]
        return self._best_of_more(available, now)

    def _best_of_more(self, available: Available, now: float) -> EndpointState:
        drawn = self._sample(available, min(self._choices, len(available)))
        if self.trace is not None:
            note_loads(self.trace, drawn, now)
        return min(drawn, key=lambda state: relative_load(state, now))
