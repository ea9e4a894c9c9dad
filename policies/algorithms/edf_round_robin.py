"""Weighted round-robin by earliest deadline first.

`selection/edf.py` with the configured weights, as Envoy's round_robin (`EdfLoadBalancerBase`) and gRPC's
weighted_round_robin. Turns by weight as in smooth weighted round-robin, at O(log n) instead of O(n).
"""

from __future__ import annotations

from operator import attrgetter
from random import Random

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import Trace
from policies.selection.edf import EdfScheduler

EARLIEST_DEADLINE = "earliest-deadline"
"""Reason: the earliest deadline. The score is the weight."""

_weight = attrgetter("weight")


class EdfRoundRobin:
    """Weighted round-robin by earliest deadline first (Envoy, gRPC)."""

    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._turns = EdfScheduler(rng)

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Rebuild the schedule with the new weights."""
        self._turns.rebuild(states, _weight)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the endpoint with the earliest deadline. O(log n)."""
        state = self._turns.next(facts, available)
        if self.trace is not None:
            self.trace.note(EARLIEST_DEADLINE, (state,), (state.weight,))
        return state
