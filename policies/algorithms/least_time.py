"""Least time: the lowest mean latency times requests in flight.

score = mean latency × (in flight + 1) / weight, the least wins, over all endpoints. The rule of nginx's `least_time`
(the commercial version) and Traefik's `leasttime` (3.6). The mean is the usual one of proxies: each sample counts for a
part α of it.

A mean that is only updated by requests keeps traffic for good from an endpoint that was slow once: Traefik #12306. So a
mean without a sample for `forget` seconds is discarded. The endpoint then gets one request at a time, and the first
response sets the new mean.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Annotated

from policies.endpoint.per_endpoint import PerEndpoint
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, OutcomeKind
from policies.options import OneOf, above, between
from policies.selection.by_score import TRIAL_COST_S, ByScore, Choices, to_first_byte


class Mean:
    """The mean `seconds` of one endpoint, and the time `at` of its last sample."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.at = -inf


class LeastTime(ByScore):
    """Least time: the lowest mean latency times requests in flight, per weight, of all endpoints."""

    def __init__(
        self,
        rng: Random,
        *,
        alpha: Annotated[float, "weight of a new sample in the mean", between(0.001, 1)] = 0.05,
        forget: Annotated[float, "seconds without a sample after which a mean is discarded", above(0)] = 10.0,
        until: Annotated[
            str, "end of the measured latency", OneOf(("first-byte", "last-byte"))
        ] = "first-byte",
        choices: Choices = 0,
    ) -> None:
        super().__init__(rng, choices)
        self._alpha = alpha
        self._forget = forget
        self._is_to_first_byte = until == "first-byte"
        self._means: PerEndpoint[Mean] = PerEndpoint(Mean)
        self.members_changed = self._means.members_changed

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Update the mean with a success; if the mean is stale, the sample replaces it."""
        if outcome.kind is not OutcomeKind.OK or not state.is_member:
            return
        seconds = to_first_byte(outcome) if self._is_to_first_byte else outcome.ended_at - outcome.sent_at
        mean = self._means[state]
        is_new = now - mean.at >= self._forget
        mean.seconds = seconds if is_new else mean.seconds + self._alpha * (seconds - mean.seconds)
        mean.at = max(now, mean.at)

    def score(self, state: EndpointState, now: float) -> float:
        """Return the score in seconds; an unmeasured endpoint comes first if it is idle, else last."""
        mean = self._means[state]
        failed = state.latency.charge * state.failure_penalty(now) if state.latency.failures else 0.0
        if now - mean.at >= self._forget and not failed:
            return TRIAL_COST_S * state.in_flight / state.weight
        return (mean.seconds + failed) * (state.in_flight + 1) / state.weight
