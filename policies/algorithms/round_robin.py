"""Weighted round-robin.

The next endpoint depends on the last one, never on a counter, so that endpoints that become full and return cause no
skips and no preference.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from operator import attrgetter
from random import Random

from policies.algorithms.smooth_round_robin import SmoothRoundRobin
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import Trace

IN_TURN = "in-turn"
"""Reason: next in turn, weights being equal."""

_order = attrgetter("order")

MAX_PASSED_ENDPOINTS = 64
"""After so many endpoints in slow start have been passed over, the next one takes the turn: when all are new, a pick
need not wait for another."""


class RoundRobin:
    """Weighted round-robin, maximally interleaved.

    Unequal weights follow nginx's smooth weighted round-robin. The first position is random, or balancers that start
    together would all pick the same one.
    """

    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._by_weight: SmoothRoundRobin | None = None  # None: weights are equal
        self._places: dict[int | None, tuple[int, EndpointState]] = {}  # by level: the next, the last
        self._credit: defaultdict[str, float] = defaultdict(float)

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Determine whether weights are equal, and forget the credit of removed endpoints."""
        kept = self._credit
        self._credit = defaultdict(float, {state.id: kept[state.id] for state in states})
        if len({state.endpoint.weight for state in states}) <= 1:
            self._by_weight = None
            return
        if self._by_weight is None:
            self._by_weight = SmoothRoundRobin(self._rng)
        self._by_weight.members_changed(states, now)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the next endpoint. O(1) for equal weights (O(log n) after an availability change), else O(n)."""
        if self._by_weight is not None:
            self._by_weight.trace = self.trace
            return self._by_weight.pick(facts, available, now)
        state = self._next_in_turn(available, facts.level)
        if state.share != 1.0:
            state = self._next_allowed(state, available, facts.level)
        if self.trace is not None:
            self.trace.note(IN_TURN, (state,))
        return state

    def _next_allowed(self, state: EndpointState, available: Available, level: int | None) -> EndpointState:
        """Return the next endpoint, skipping one in slow start in proportion to its share."""
        credit = self._credit
        for _ in range(MAX_PASSED_ENDPOINTS):
            credit[state.id] += state.share
            if credit[state.id] >= 1.0:
                break
            state = self._next_in_turn(available, level)
        credit[state.id] -= 1.0
        return state

    def _next_in_turn(self, available: Available, level: int | None) -> EndpointState:
        place = self._places.get(level)
        if place is None:
            after = self._rng.randrange(len(available))
        else:
            after, last = place
            if after > len(available) or available[after - 1] is not last:
                after = bisect_right(available, last.order, key=_order)
        if after >= len(available):
            after = 0
        state = available[after]
        self._places[level] = after + 1, state
        return state
