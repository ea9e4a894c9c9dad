"""Smooth weighted round-robin: turns by weight, spread out as evenly as can be.

Rule of this file: everyone earns its weight per pick, the richest is picked and pays what all have earned. nginx's
upstream module since 1.3.1 (`ngx_http_upstream_get_peer`): weights 5, 1, 1 give a a b a c a a, never five a in a row.

Credits add up to nothing and stay so, whoever flips: who is away neither earns nor pays. They begin at random, or all
balancers that start together would go the same round in step.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

from policies.insight.explanation import Trace
from policies.round_robin import MOST_CREDIT
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import RequestFacts


class SmoothRoundRobin:
    """Each in turn as often as its weight says, by nginx's smooth weighted round-robin."""

    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._random = rng.random
        self._credit: defaultdict[EndpointState, float] = defaultdict(float)

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Those that stay keep their credit, a new one begins anywhere in its round; then all is evened out."""
        total = sum(state.endpoint.weight for state in states)
        had = self._credit
        mine = [had[state] if state in had else (self._random() - 0.5) * total for state in states]
        surplus = sum(mine) / len(mine) if mine else 0.0
        even = ((state, own - surplus) for state, own in zip(states, mine, strict=True))
        self._credit = defaultdict(float, even)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """O(n)."""
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
