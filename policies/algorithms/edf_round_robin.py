"""Weighted round-robin by earliest deadline first.

`EdfScheduler` with the configured weights, as Envoy's round_robin (`EdfLoadBalancerBase`) and gRPC's
weighted_round_robin. Turns by weight as in smooth weighted round-robin, at O(log n) instead of O(n).

The scheduler is a heap in virtual time. An endpoint that has had its turn is due again one period later, 1/weight, so
that in any stretch each has its share to within one turn. Demers, Keshav and Shenker (SIGCOMM 1989) queue packets so.
Weights may change at any time.

Phases are random. If every endpoint began at its first deadline, and again at every rebuild, all balancers that learn
of a change at once would send their next requests to the same endpoint, the heaviest. Here a new endpoint begins
anywhere in its period, and a rebuild keeps the part of the period that each has still to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heapreplace
from operator import attrgetter
from random import Random

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import Trace

MAX_PASSED_TURNS = 64
"""After so many turns of unavailable endpoints, one of the available is drawn by weight: when most are unavailable, a
pick must not look at all of them."""

Entry = tuple[float, int, EndpointState, float]
"""(due at, index, endpoint, the weight that the period was computed from). The index breaks ties, so that a run is
reproducible."""


class EdfScheduler:
    """Earliest-deadline-first scheduler of endpoints, weighted by the period 1/weight; each level has its own."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._heaps: dict[int | None, list[Entry]] = {None: []}
        self._times: dict[int | None, float] = {}
        self._weights: Mapping[EndpointState, float] = {}

    def rebuild(self, states: Iterable[EndpointState], weight_of: Callable[[EndpointState], float]) -> None:
        """Set the endpoints and their weights. O(n)."""
        self._weights = {state: weight_of(state) for state in states}
        for level in self._heaps:
            self._schedule(level)

    def _schedule(self, level: int | None) -> list[Entry]:
        """Return the deadlines in a level, or of all endpoints: those of before, as far as there were any."""
        random, time = self._rng.random, self._times.get(level, 0.0)
        left = {state: max(0.0, due - time) * weight for due, _, state, weight in self._heaps.get(level, ())}
        heap = self._heaps[level] = [
            ((left[state] if state in left else random()) / weight, place, state, weight)
            for place, (state, weight) in enumerate(self._weights.items())
            if level is None or state.endpoint.priority == level
        ]
        self._times[level] = 0.0
        heapify(heap)
        return heap

    def next(self, facts: RequestFacts, available: Available) -> EndpointState:
        """Return the endpoint of `available` that is due next.

        O(log n); an unavailable one misses its turns for good.
        """
        level, weights, tried = facts.level, self._weights, facts.tried
        heap = self._heaps[level] if level in self._heaps else self._schedule(level)
        for _ in range(MAX_PASSED_TURNS if heap else 0):
            due, place, state, _weight = heap[0]
            self._times[level] = due
            weight = weights[state]
            heapreplace(heap, (due + 1.0 / weight, place, state, weight))
            if state.is_selectable and (not tried or state.id not in tried):
                return state
        return self._rng.choices(available, [weights.get(state, state.weight) for state in available])[0]


EARLIEST_DEADLINE = "earliest-deadline"
"""Reason: the earliest deadline. The score is the weight."""

_weight = attrgetter("weight")


class EdfRoundRobin:
    """Weighted round-robin by earliest deadline first (Envoy, gRPC)."""

    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._turns = EdfScheduler(rng)

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        self._turns.rebuild(states, _weight)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the endpoint with the earliest deadline. O(log n)."""
        state = self._turns.next(facts, available)
        if self.trace is not None:
            self.trace.note(EARLIEST_DEADLINE, (state,), (state.weight,))
        return state
