"""Weighted round-robin by earliest deadline.

Rule of this file: `deadlines.py` with the configured weights. Envoy's round_robin (`EdfLoadBalancerBase`) and gRPC's
weighted_round_robin are this. Turns by weight as in smooth weighted round-robin, at O(log n) instead of O(n).
"""

from __future__ import annotations

from operator import attrgetter
from random import Random

from policies.edf import Deadlines
from policies.insight.explanation import Trace
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import RequestFacts

EARLIEST_DEADLINE = "earliest-deadline"
"""Who has waited longest, in periods of its own. The score is its weight."""

_weight = attrgetter("weight")


class EdfRoundRobin:
    """Each in turn as often as its weight says, by earliest deadline first."""

    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._turns = Deadlines(rng)

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Deadlines go by the new weights from now on."""
        self._turns.rebuild(states, _weight)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """O(log n)."""
        state = self._turns.next(facts, available)
        if self.trace is not None:
            self.trace.note(EARLIEST_DEADLINE, (state,), (state.weight,))
        return state
