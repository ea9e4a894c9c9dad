"""Latency-weighted: random, in favour of the quick.

Rule of this file: everyone keeps a share. A policy that stops asking an endpoint cannot learn that it has
recovered.
"""

from __future__ import annotations

from random import Random

from policies.insight.explanation import Trace
from policies.options import at_least, between
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import RequestFacts

EXPLORED = "explored"
"""Drawn by weight alone, so that everyone keeps a share. Scores are weights."""

QUICKER_LIKELIER = "quicker-likelier"
"""Drawn in favour of the quick. Scores are what the chances are in proportion to."""

QUICKEST = 1e-6
"""Seconds below which latencies count as equal: nothing over a network is quicker, and it keeps 1/latency
finite."""


class LatencyWeighted:
    """Random, with probability in proportion to weight/(predicted latency)^power, in-flight corrected.

    `power` 0 is plain random, large is least latency. `explore` is the share of requests that is drawn
    regardless of latency. Shares in proportion to speed are not the optimum over queues (that is flatter
    for the slow, see the static optimum of Tantawi & Towsley, JACM 1985), but they need no arrival rate and
    cannot oscillate far.
    """

    trace: Trace | None = None

    def __init__(self, rng: Random, *, power: float = 1.0, explore: float = 0.03) -> None:
        self._rng = rng
        self._power = at_least(0, power=power)
        self._explore = between(0, 1, explore=explore)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """O(n)."""
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
        return state.weight / max(QUICKEST, state.predicted_latency(now)) ** self._power  # type: ignore[no-any-return]
