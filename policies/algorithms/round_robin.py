"""Weighted round-robin.

The next endpoint depends on the last one, never on a counter, so that endpoints that become full and return cause no
skips and no preference.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from operator import attrgetter
from random import Random

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import Trace

IN_TURN = "in-turn"
"""Reason: next in turn, weights being equal."""

MOST_CREDIT = "most-credit"
"""Reason: the most credit. Scores are credits."""

_order = attrgetter("order")

MAX_PASSED_ENDPOINTS = 64
"""After so many endpoints in slow start have been passed over, the next one takes the turn: when all are new, a pick
need not wait for another."""


class RoundRobin:
    """Weighted round-robin, maximally interleaved.

    Unequal weights follow nginx's smooth weighted round-robin (since 1.3.1, 2012): every endpoint earns its weight per
    pick; the one with the most credit is picked and pays what all earned. The first position and the initial credits
    are random, or balancers that start or learn of a new endpoint together would all pick the same one.
    """

    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._is_even = True
        self._next = 0
        self._last: EndpointState | None = None
        self._credit: defaultdict[str, float] = defaultdict(float)

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Determine whether weights are equal, and forget the credit of removed endpoints."""
        was_even, self._is_even = self._is_even, len({state.endpoint.weight for state in states}) <= 1
        kept = {} if was_even and not self._is_even else self._credit
        everything = sum(state.endpoint.weight for state in states)
        self._credit = defaultdict(float)
        for state in states:
            phase = 0.0 if self._is_even else (self._rng.random() - 0.5) * everything
            self._credit[state.id] = kept.get(state.id, phase)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the next endpoint. O(1) for equal weights (O(log n) after an availability change), else O(n)."""
        if not self._is_even:
            return self._most_credit(available)
        state = self._next_in_turn(available)
        if state.share != 1.0:
            state = self._next_allowed(state, available)
        if self.trace is not None:
            self.trace.note(IN_TURN, (state,))
        return state

    def _next_allowed(self, state: EndpointState, available: Available) -> EndpointState:
        """Return the next endpoint, skipping one in slow start in proportion to its share."""
        credit = self._credit
        for _ in range(MAX_PASSED_ENDPOINTS):
            credit[state.id] += state.share
            if credit[state.id] >= 1.0:
                break
            state = self._next_in_turn(available)
        credit[state.id] -= 1.0
        return state

    def _next_in_turn(self, available: Available) -> EndpointState:
        last, after = self._last, self._next
        if last is None:
            after = self._rng.randrange(len(available))
        elif after > len(available) or available[after - 1] is not last:
            after = bisect_right(available, last.order, key=_order)
        if after >= len(available):
            after = 0
        self._next = after + 1
        self._last = state = available[after]
        return state

    def _most_credit(self, available: Available) -> EndpointState:
        credit = self._credit
        for state in available:
            credit[state.id] += state.weight
        best = max(available, key=lambda state: credit[state.id])
        if self.trace is not None:
            self.trace.note(MOST_CREDIT, available, [credit[state.id] for state in available])
        credit[best.id] -= sum(state.weight for state in available)
        return best
