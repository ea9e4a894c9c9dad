"""C3: ranks endpoints by latency and by the cube of the expected queue.

The score of Suresh, Canini, Schmid and Feldmann, "C3: Cutting Tail Latency in Cloud Data Stores via Adaptive Replica
Selection", NSDI 2015, section 3.1:

    Ψ = R − 1/μ + q̂³/μ        q̂ = 1 + os·w + q

R is the mean latency measured here, 1/μ the mean service time and q the mean queue that the worker reports, os what is
in flight there from here, w the number of balancers (each assumes that the others send as much as itself). The cube
keeps a fast endpoint from having a queue that is as long in seconds as a slow one's: that is long in requests, and all
of them wait when it slows down.

The means are by samples, as in the paper; each counts for `alpha`, .3 as in Elasticsearch's adaptive replica selection.
Here q̂ is per weight. The service time of a worker that reports none is the least latency measured of it; its queue, if
it reports none, is zero. The paper's rate control is omitted: limits and queues belong to the router.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Annotated

from policies.endpoint.per_endpoint import PerEndpoint
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, OutcomeKind, ReportedLoad
from policies.options import above, at_least, between
from policies.selection.by_score import TRIAL_COST_S, ByScore, Choices, to_first_byte
from policies.selection.two_choices import FAILING

FORGET_AFTER = 10.0
"""Seconds after which measurements and reports are discarded: an endpoint that is avoided cannot show that it has
recovered."""

UNKNOWN = -1.0


class Feedback:
    """The three means of one endpoint, in seconds and requests, as of `at`; UNKNOWN before the first sample."""

    def __init__(self) -> None:
        self.at = -inf
        self.latency = self.queue = self.service = UNKNOWN

    def hear(self, latency: float | None, load: ReportedLoad | None, now: float, alpha: float) -> None:
        """Add a latency, a load report, or both."""
        if now - self.at >= FORGET_AFTER:
            self.latency = self.queue = self.service = UNKNOWN
        self.at = max(now, self.at)
        if latency is not None:
            self.latency = mean(self.latency, latency, alpha)
        if load is not None and load.in_flight is not None:
            self.queue = mean(self.queue, load.in_flight, alpha)
        if load is not None and load.service_time is not None:
            self.service = mean(self.service, load.service_time, alpha)


def mean(old: float, new: float, alpha: float) -> float:
    """Return the moving average with a new sample that counts for `alpha`, or for all if it is the first."""
    return new if old == UNKNOWN else old + alpha * (new - old)


class C3(ByScore):
    """C3: the lowest rank of three drawn at random, by mean latency and the cube of the expected queue."""

    reads_reports = True

    def __init__(
        self,
        rng: Random,
        *,
        choices: Choices = 3,
        alpha: Annotated[float, "weight of a new sample in the means", between(0.001, 1)] = 0.3,
        exponent: Annotated[float, "exponent of the queue length", above(0)] = 3.0,
        balancers: Annotated[float, "number of balancers that send to the same endpoints", at_least(1)] = 1.0,
    ) -> None:
        super().__init__(rng, choices)
        self._exponent = exponent
        self._alpha = alpha
        self._balancers = balancers
        self._heard: PerEndpoint[Feedback] = PerEndpoint(Feedback)
        self.members_changed = self._heard.members_changed

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Record the latency of a success and the load report of any response."""
        is_ok = outcome.kind is OutcomeKind.OK
        if state.is_member and (is_ok or outcome.reported_load is not None):
            latency = to_first_byte(outcome) if is_ok else None
            self._heard[state].hear(latency, outcome.reported_load, now, self._alpha)

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        self._heard[state].hear(None, load, now, self._alpha)

    def score(self, state: EndpointState, now: float) -> float:
        """Return Ψ in seconds, with the failure penalty in the queue.

        An unmeasured endpoint gets the latency prior without a request in flight, and TRIAL_COST_S per request after.
        """
        heard = self._heard[state]
        latency, service, queue = heard.latency, heard.service, heard.queue
        if now - heard.at >= FORGET_AFTER:
            latency = service = queue = UNKNOWN
        if latency < 0.0:
            if state.in_flight:
                return TRIAL_COST_S * state.in_flight / state.weight
            latency = state.latency_prior.latency(state.region, now)
        if service < 0.0:
            service = min(latency, state.latency.floor)
        waiting = 1.0 + state.in_flight * self._balancers + (queue if queue > 0.0 else 0.0)
        if state.latency.failures:
            waiting += FAILING * state.failure_penalty(now)
        score: float = latency - service + (waiting / state.weight) ** self._exponent * service
        return score
