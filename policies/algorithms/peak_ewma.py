"""Peak EWMA: reacts at once to a higher latency, and slowly to a lower one.

A cost per endpoint, in seconds. On a sample x that comes Δ after the last one

    x > c:  c = x        else:  c = c·w + x·(1 − w),  w = e^(−Δ/τ)

and a cost that is read decays toward 0, as if a sample of 0 had come at that moment: c·e^(−Δ/τ). The score is
c·(in_flight + 1)/weight. Twitter's Finagle, `loadbalancer/PeakEwma.scala`; Linkerd took it from there.

Three things differ from Finagle. A read changes nothing: in Finagle each read decays the cost and counts as an
observation. Failures are charged, at least 5 s or the endpoint's 99th percentile, because fast ones would attract
traffic (`EndpointState.failure_penalty` defines for how long). And a stale cost does not attract all requests: the
endpoint is on probation, as a new one is.
"""

from __future__ import annotations

from math import exp, inf
from random import Random
from typing import Annotated

from policies.endpoint.per_endpoint import PerEndpoint
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, OutcomeKind
from policies.options import above
from policies.selection.by_score import TRIAL_COST_S, ByScore, Choices, to_first_byte

STALE_TAUS = 3.0
"""Multiple of τ without a sample after which an endpoint is on probation: its cost has decayed to a twentieth."""


class Cost:
    """Cost of one endpoint: `seconds` as of the last sample, `at`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.at = -inf

    def sample(self, seconds: float, now: float, decay: float) -> None:
        """Add a latency sample of `seconds`; `decay` is τ."""
        if seconds >= self.seconds:
            self.seconds = seconds
        else:
            keep = exp((self.at - now) / decay) if now > self.at else 1.0
            self.seconds = self.seconds * keep + seconds * (1.0 - keep)
        if now > self.at:
            self.at = now


class PeakEwma(ByScore):
    """Peak EWMA: the lower cost of two drawn at random, by decaying peak latency times requests in flight."""

    def __init__(
        self,
        rng: Random,
        *,
        decay: Annotated[float, "time constant of the cost in seconds", above(0)] = 10.0,
        choices: Choices = 2,
    ) -> None:
        super().__init__(rng, choices)
        self._decay = decay
        self._stale = STALE_TAUS * decay
        self._costs: PerEndpoint[Cost] = PerEndpoint(Cost)
        self.members_changed = self._costs.members_changed

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Record the latency of a success to the first byte; failures are charged when the score is read."""
        if outcome.kind is OutcomeKind.OK and state.is_member:
            self._costs[state].sample(to_first_byte(outcome), now, self._decay)

    def score(self, state: EndpointState, now: float) -> float:
        """Return seconds × (in flight + 1) / weight; on probation 0 without requests, else TRIAL_COST_S per request."""
        cost = self._costs[state]
        age = now - cost.at
        seconds = cost.seconds * exp(-age / self._decay) if age < self._stale else 0.0
        if state.latency.failures:
            seconds += state.latency.charge * state.failure_penalty(now)
        if seconds == 0.0:
            return TRIAL_COST_S * state.in_flight / state.weight
        return seconds * (state.in_flight + 1) / state.weight
