"""Latency-weighted random choice, in favour of fast endpoints.

Every endpoint keeps a share: a policy that sends an endpoint no requests cannot learn that it has recovered.
"""

from __future__ import annotations

from random import Random
from typing import Annotated

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import Trace
from policies.options import at_least, between

EXPLORED = "explored"
"""Reason: drawn by weight alone, so that every endpoint keeps a share. Scores are weights."""

QUICKER_LIKELIER = "quicker-likelier"
"""Reason: drawn in favour of fast endpoints. Scores are proportional to the probabilities."""

MIN_LATENCY_S = 1e-6
"""Seconds below which latencies count as equal: nothing over a network is faster, and it keeps 1/latency finite."""


class LatencyWeighted:
    """Weighted random choice, in proportion to weight/(predicted latency)^power, in-flight corrected.

    `power` 0 is plain random, a large one least latency. `explore` is the share of requests drawn regardless of
    latency. Shares in proportion to speed are not the optimum over queues (that is flatter for slow endpoints, see the
    static optimum of Tantawi & Towsley, JACM 1985), but they need no arrival rate and cannot oscillate far.
    """

    trace: Trace | None = None

    def __init__(
        self,
        rng: Random,
        *,
        power: Annotated[float, "share ∝ 1/latency^power: 0 random, large: the least", at_least(0)] = 1.0,
        explore: Annotated[float, "share of requests drawn regardless of latency", between(0, 1)] = 0.03,
    ) -> None:
        self._rng = rng
        self._power = power
        self._explore = explore

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick by weight, or by weight and latency. O(n)."""
        if self._rng.random() < self._explore:
            chances = [state.weight for state in available]
            reason = EXPLORED
        else:
            chances = [self._attraction(state, now) for state in available]
            reason = QUICKER_LIKELIER
        if self.trace is not None:
            self.trace.note(reason, available, chances)
        return self._rng.choices(available, chances)[0]

    def _attraction(self, state: EndpointState, now: float) -> float:
        latency = max(MIN_LATENCY_S, state.predicted_latency(now))
        return state.weight / latency**self._power  # type: ignore[no-any-return] # typeshed: a power may be complex
