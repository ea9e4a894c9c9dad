"""Weighted round-robin by what the workers report of themselves.

Rule of this file: gRFC A58 (`weighted_round_robin`), which Envoy has as `client_side_weighted_round_robin`. The weight
of an endpoint is what it serves per unit of its utilisation,

    w = qps / (utilisation + eps/qps × penalty)

with eps its errors per second. No weight is had from an endpoint that has not reported for `blackout` seconds on end,
or whose last report is older than `expiry`; it takes the mean of the others' weights. With fewer than two weights all
count by what is configured. Turns are by earliest deadline first, renewed every `update` seconds.

In the gRFC the worker reports qps and eps. Ours reports its utilisation, so both are counted here: among several
balancers the ratio holds as long as they all send in the same proportions.
"""

from __future__ import annotations

from math import inf
from random import Random

from policies.edf import Deadlines
from policies.errors import BadPolicyOption
from policies.insight.explanation import Trace
from policies.options import at_least
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import Outcome, ReportedLoad, RequestFacts
from policies.stats.per_endpoint import PerEndpoint
from policies.stats.rate import RateMeter

BY_REPORTS = "by-reports"
"""Who has waited longest, in periods of its own. The score is its weight, as reports make it."""

LEAST_UTILIZATION = 1e-3
"""A worker that is less busy than this says nothing of what it can take."""


class Report:
    """What is known of one endpoint: its `utilization` as of `at`, reported without a gap since `since`, and the pace
    of its answers and `errors`."""

    __slots__ = ("answers", "at", "errors", "has_begun", "since", "utilization")

    def __init__(self) -> None:
        self.utilization = 0.0
        self.at = -inf
        self.since = inf
        self.has_begun = False
        self.answers = RateMeter()
        self.errors = RateMeter()

    def count(self, is_failure: bool, now: float) -> None:
        """One request has ended."""
        if not self.has_begun:
            self.has_begun = True
            self.answers.begin(now)
            self.errors.begin(now)
        self.answers.count(now)
        if is_failure:
            self.errors.count(now)

    def hear(self, load: ReportedLoad, now: float, expiry: float) -> None:
        """It says how busy it is; a gap of `expiry` seconds begins the blackout anew."""
        if load.utilization is None or load.utilization < LEAST_UTILIZATION:
            return
        if now - self.at >= expiry:
            self.since = now
        self.utilization = load.utilization
        self.at = now

    def weight(self, now: float, blackout: float, expiry: float, penalty: float) -> float:
        """Requests per second and unit of utilisation; 0 where it cannot be told."""
        if now - self.at >= expiry or now - self.since < blackout:
            return 0.0
        qps = self.answers.read(now)
        return qps / (self.utilization + self.errors.read(now) / qps * penalty) if qps else 0.0


class ReportedLoadRoundRobin:
    """Turns in proportion to requests per second over reported utilisation, errors counted as load (gRPC A58)."""

    trace: Trace | None = None

    def __init__(
        self,
        rng: Random,
        *,
        penalty: float = 1.0,
        blackout: float = 10.0,
        expiry: float = 180.0,
        update: float = 1.0,
    ) -> None:
        self._penalty = at_least(0, penalty=penalty)
        self._blackout = at_least(0, blackout=blackout)
        if not expiry > 0:
            raise BadPolicyOption("expiry", f"must be > 0, got {expiry}")
        self._expiry = expiry
        self._update = at_least(0.1, update=update)
        self._updated_at = -inf
        self._turns = Deadlines(rng)
        self._reports: PerEndpoint[Report] = PerEndpoint(Report)
        self._weights: dict[EndpointState, float] = {}

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Who is new takes the mean of the others."""
        self._reports.follow(states)
        self._rebuild(now)

    def tick(self, now: float) -> None:
        """Renew the weights when it is time."""
        if now - self._updated_at >= self._update:
            self._rebuild(now)

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Every answer counts, and may carry a report."""
        if not state.is_member:
            return
        report = self._reports[state]
        report.count(outcome.kind.is_failure, now)
        if outcome.reported_load is not None:
            report.hear(outcome.reported_load, now, self._expiry)

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        """Reports count however they come."""
        self._reports[state].hear(load, now, self._expiry)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """O(log n)."""
        state = self._turns.next(facts, available)
        if self.trace is not None:
            self.trace.note(BY_REPORTS, (state,), (self._weights.get(state, 0.0),))
        return state

    def _rebuild(self, now: float) -> None:
        self._updated_at = now
        self._weights = self._weigh(now)
        self._turns.rebuild(self._weights, self._weights.__getitem__)

    def _weigh(self, now: float) -> dict[EndpointState, float]:
        """By reports; those without by the mean, per unit of configured weight; all in part while they warm up."""
        told = {
            state: report.weight(now, self._blackout, self._expiry, self._penalty)
            for state, report in self._reports.items()
        }
        known = [state for state, weight in told.items() if weight]
        if len(known) < 2:
            return {state: state.weight for state in told}
        usual = sum(told.values()) / sum(state.endpoint.weight for state in known)
        return {
            state: weight * state.share if weight else usual * state.weight for state, weight in told.items()
        }
