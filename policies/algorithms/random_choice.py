"""Weighted random choice: no state and no herding. The baseline of every other policy."""

from __future__ import annotations

from random import Random

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import Trace

AT_RANDOM = "at-random"
"""Reason: drawn by weight, whatever the load. The score is the weight of the endpoint drawn."""

MOST_REDRAWS = 64
"""After so many rejections the weights are too uneven for rejection sampling; one exact draw over all, O(n),
follows."""


class RandomChoice:
    """Weighted random choice.

    Rejection sampling: draw uniformly, keep with probability weight/heaviest. That needs no table, so nothing is
    rebuilt when an endpoint fills up, and for equal weights it is a single draw.
    """

    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._random = rng.random
        self._heaviest = 1.0

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Note the largest configured weight, without slow start."""
        self._heaviest = max((state.endpoint.weight for state in states), default=1.0)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick an endpoint. O(1) for equal weights, else O(heaviest/mean weight)."""
        state = available[int(self._random() * len(available))]
        if state.weight < self._heaviest:
            state = self._redraw(state, available)
        if self.trace is not None:
            self.trace.note(AT_RANDOM, (state,), (state.weight,))
        return state

    def _redraw(self, state: EndpointState, available: Available) -> EndpointState:
        for _ in range(MOST_REDRAWS):
            if self._random() * self._heaviest < state.weight:
                return state
            state = available[int(self._random() * len(available))]
        return self._rng.choices(available, [state.weight for state in available])[0]
