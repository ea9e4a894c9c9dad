"""Test bench for policies: the real router, simulated endpoints and virtual time.

It only runs and records. A run of a minute takes a fraction of a second, and the same seed gives the same run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from random import Random

from policies.endpoint.state import EndpointState
from policies.errors import Overloaded
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.health.health import Health
from policies.loading.construction import maker_of
from policies.policy import Policy
from policies.routing.assignment import Assignment
from policies.routing.router import Router

REGION = "here"

MOST_FAULTS = 100
"""Fallback picks that end a trial: a policy that fails at every pick may take milliseconds for each."""

Answer = Callable[[EndpointState, float], tuple[float, OutcomeKind]]
"""(state, sent at) -> (seconds until the response, its outcome)."""


class ContractBroken(AssertionError):
    """A policy violates a rule of the contract."""


def require(kept: bool, otherwise: str) -> None:
    """Raise ContractBroken with the message `otherwise` unless `kept`."""
    if not kept:
        raise ContractBroken(otherwise)


class ManualClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.time


def endpoints(*weights: float, region: str = REGION) -> list[Endpoint]:
    """Return one endpoint per weight, "here-0", "here-1", …, in one region."""
    return [Endpoint(f"{region}-{i}", f"http://{region}-{i}", region, w) for i, w in enumerate(weights)]


def steady(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
    """An endpoint that always responds after 100 ms."""
    return 0.1, OutcomeKind.OK


class Trial:
    """A router with a policy and simulated endpoints, and a log: `picked` counts requests, `log` has (sent at, id,
    latency), `rejected_at` when the policy rejected requests of an open loop."""

    def __init__(
        self,
        make: Callable[..., Policy],
        members: Iterable[Endpoint],
        answer: Answer = steady,
        seed: int = 1,
        health: Health | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.router = Router(
            members, maker_of(make)(Random(seed)), self.clock, Random(seed + 1), health=health
        )
        self.facts = RequestFacts(region=REGION)
        self.log: list[tuple[float, str, float]] = []
        self.rejected_at: list[float] = []
        self._answer = answer
        self._rng = Random(seed + 2)
        self._ends: list[tuple[float, int, Assignment | None, OutcomeKind]] = []
        self._order = count()
        self._tick_at = 1.0

    def send(self) -> EndpointState:
        """Route one request; its response arrives at its time in the virtual clock. Raises `ContractBroken`."""
        assignment = self.router.route(self.facts)
        if self.router.fallback_picks >= MOST_FAULTS:
            raise ContractBroken(f"fallback picks: {MOST_FAULTS}, last fault: {self.router.last_fault}")
        latency, kind = self._answer(assignment.state, self.clock.time)
        self.log.append((self.clock.time, assignment.state.id, latency))
        self._at(self.clock.time + latency, assignment, kind)
        return assignment.state

    def closed_loop(self, outstanding: int, seconds: float) -> None:
        """Keep `outstanding` requests in flight: each response is followed by the next request, 0–1 ms later."""
        for _ in range(outstanding):
            self.send()
        self._run(self.clock.time + seconds, lambda: self._at(self.clock.time + self._rng.random() * 1e-3))

    def open_loop(self, rate: float, seconds: float) -> None:
        """Send at random times (Poisson), `rate` per second, regardless of responses."""
        at, until = self.clock.time, self.clock.time + seconds
        while (at := at + self._rng.expovariate(rate)) < until:
            self._at(at)
        self._run(until, lambda: None)

    def picked(self, since: float = 0.0) -> Counter[str]:
        """Return the requests per endpoint, of those sent from `since` on."""
        return Counter(endpoint for sent_at, endpoint, _ in self.log if sent_at >= since)

    def unanswered(self) -> Counter[str]:
        """Return the requests per endpoint that have no response yet."""
        return Counter(assignment.state.id for _, _, assignment, _ in self._ends if assignment is not None)

    def mean_latency(self, since: float = 0.0) -> float:
        """Return the mean latency in seconds of the requests sent from `since` on."""
        latencies = [latency for sent_at, _, latency in self.log if sent_at >= since]
        return sum(latencies) / len(latencies)

    def _at(
        self, at: float, assignment: Assignment | None = None, kind: OutcomeKind = OutcomeKind.OK
    ) -> None:
        heapq.heappush(self._ends, (at, next(self._order), assignment, kind))

    def _run(self, until: float, after_answer: Callable[[], None]) -> None:
        while self._ends and self._ends[0][0] <= until:
            self._tick_until(self._ends[0][0])
            self.clock.time, _, assignment, kind = heapq.heappop(self._ends)
            if assignment is None:
                try:
                    self.send()
                except Overloaded:
                    self.rejected_at.append(self.clock.time)
                continue
            status = 200 if kind is OutcomeKind.OK else None
            sent_at, now = assignment.routed_at, self.clock.time
            first_byte_at = None if status is None else now
            self.router.settle(assignment, Outcome(kind, status, sent_at, first_byte_at, now))
            after_answer()
        self._tick_until(until)
        self.clock.time = until

    def _tick_until(self, at: float) -> None:
        """Call the router's `tick` once a second, as the balancer does."""
        while self._tick_at <= at:
            self.clock.time = self._tick_at
            self.router.tick()
            self._tick_at += 1.0
