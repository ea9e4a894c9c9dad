"""Smooth weighted round-robin: turns in proportion to weight, spread out as evenly as possible.

Every endpoint earns its weight per pick; the one with the most credit is picked and pays the sum of all earnings. From
nginx's upstream module since 1.3.1 (`ngx_http_upstream_get_peer`): weights 5, 1, 1 give a a b a c a a, never five a in
a row.

Credits always sum to zero: an unavailable endpoint neither earns nor pays. Initial credits are random, or all balancers
that start together would go round in step.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import Trace

MOST_CREDIT = "most-credit"
"""Reason: the most credit. Scores are credits."""


class SmoothRoundRobin:
    """Smooth weighted round-robin (nginx): turns in proportion to weight, spread out evenly."""

    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._random = rng.random
        self._credit: defaultdict[EndpointState, float] = defaultdict(float)

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Keep the credit of remaining endpoints, give new ones a random one, and normalize the sum to zero."""
        total = sum(state.endpoint.weight for state in states)
        had = self._credit
        mine = [had[state] if state in had else (self._random() - 0.5) * total for state in states]
        surplus = sum(mine) / len(mine) if mine else 0.0
        even = ((state, own - surplus) for state, own in zip(states, mine, strict=True))
        self._credit = defaultdict(float, even)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the endpoint with the most credit. O(n)."""
        credit = self._credit
        richest, most, total = available[0], float("-inf"), 0.0
        for state in available:
            weight = state.weight
            total += weight
            own = credit[state] = credit[state] + weight
            if own > most:
                most, richest = own, state
        if self.trace is not None:
            self.trace.note(MOST_CREDIT, available, [credit[state] for state in available])
        credit[richest] = most - total
        return richest
