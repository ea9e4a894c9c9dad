"""Client-side weighted round-robin by the load that workers report (ORCA style).

gRFC A58 (`weighted_round_robin`), which Envoy has as `client_side_weighted_round_robin`. The weight of an endpoint is
the rate it serves per unit of its utilisation,

    w = qps / (utilisation + eps/qps × penalty)

with eps its errors per second. An endpoint that has not reported for `blackout` seconds without a gap, or whose last
report is older than `expiry`, has no weight of its own and takes the mean of the others. With fewer than two such
weights all endpoints use the configured ones. Turns are by earliest deadline first, renewed every `update` seconds.

In the gRFC the worker reports qps and eps. Here it reports only its utilisation, so both are counted by the balancer:
with several balancers the ratio holds as long as they all send in the same proportions.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Annotated

from policies.algorithms.edf_round_robin import EdfScheduler
from policies.endpoint.available import Available
from policies.endpoint.per_endpoint import PerEndpoint
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, ReportedLoad, RequestFacts
from policies.insight.explanation import Trace
from policies.options import above, at_least
from policies.stats.load import RateMeter

BY_REPORTS = "by-reports"
"""Reason: the earliest deadline. The score is the weight computed from reports."""

LEAST_UTILIZATION = 1e-3
"""Least utilisation that counts as a report: below it, qps per utilisation says nothing about capacity."""


class EndpointReport:
    """Report of one endpoint: `utilization` as of `at`, without a gap since `since`, and rates of responses."""

    def __init__(self) -> None:
        self.utilization = 0.0
        self.at = -inf
        self.since = inf
        self.has_begun = False
        self.answers = RateMeter()
        self.errors = RateMeter()

    def count(self, is_failure: bool, now: float) -> None:
        """Count one success or failure."""
        if not self.has_begun:
            self.has_begun = True
            self.answers.begin(now)
            self.errors.begin(now)
        self.answers.count(now)
        if is_failure:
            self.errors.count(now)

    def hear(self, load: ReportedLoad, now: float, expiry: float) -> None:
        """Record a reported utilisation; a gap of `expiry` seconds restarts the blackout."""
        if load.utilization is None or load.utilization < LEAST_UTILIZATION:
            return
        if now - self.at >= expiry:
            self.since = now
        self.utilization = load.utilization
        self.at = now

    def weight(self, now: float, blackout: float, expiry: float, penalty: float) -> float:
        """Return requests per second and unit of utilisation; 0 if unknown."""
        if now - self.at >= expiry or now - self.since < blackout:
            return 0.0
        qps = self.answers.read(now)
        return qps / (self.utilization + self.errors.read(now) / qps * penalty) if qps else 0.0


class ReportedLoadRoundRobin:
    """Turns in proportion to requests per second over reported utilisation, errors counted as load (gRPC A58)."""

    reads_reports = True
    trace: Trace | None = None

    def __init__(
        self,
        rng: Random,
        *,
        penalty: Annotated[float, "utilisation added for an error rate of 1", at_least(0)] = 1.0,
        blackout: Annotated[float, "seconds of reports before they are used", at_least(0)] = 10.0,
        expiry: Annotated[float, "seconds after which a report expires", above(0)] = 180.0,
        update: Annotated[float, "least seconds between two updates of the weights", at_least(0.1)] = 1.0,
    ) -> None:
        self._penalty = penalty
        self._blackout = blackout
        self._expiry = expiry
        self._update = update
        self._updated_at = -inf
        self._turns = EdfScheduler(rng)
        self._reports: PerEndpoint[EndpointReport] = PerEndpoint(EndpointReport)
        self._weights: dict[EndpointState, float] = {}

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Update the endpoints; a new one gets the mean weight."""
        self._reports.members_changed(states, now)
        self._rebuild(now)

    def tick(self, now: float) -> None:
        if now - self._updated_at >= self._update:
            self._rebuild(now)

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        if not state.is_member:
            return
        report = self._reports[state]
        if outcome.kind.is_success or outcome.kind.is_failure:
            report.count(outcome.kind.is_failure, now)
        if outcome.reported_load is not None:
            report.hear(outcome.reported_load, now, self._expiry)

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        self._reports[state].hear(load, now, self._expiry)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the endpoint with the earliest deadline. O(log n)."""
        state = self._turns.next(facts, available)
        if self.trace is not None:
            self.trace.note(BY_REPORTS, (state,), (self._weights.get(state, 0.0),))
        return state

    def _rebuild(self, now: float) -> None:
        self._updated_at = now
        self._weights = self._weigh(now)
        self._turns.rebuild(self._weights, self._weights.__getitem__)

    def _weigh(self, now: float) -> dict[EndpointState, float]:
        """Return the weights: from reports, else the mean per configured weight; times the slow-start share."""
        reported = {
            state: report.weight(now, self._blackout, self._expiry, self._penalty)
            for state, report in self._reports.items()
        }
        known = [state for state, weight in reported.items() if weight]
        if len(known) < 2:
            return {state: state.weight for state in reported}
        usual = sum(reported.values()) / sum(state.endpoint.weight for state in known)
        return {
            state: weight * state.share if weight else usual * state.weight
            for state, weight in reported.items()
        }
