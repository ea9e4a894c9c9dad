"""Least in flight (least connections) of a random sample: the power of two choices.

Samples are drawn without replacement. Caddy's `random_choose 2` drew with replacement and was plain random for years,
because no test asserted its distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from policies.endpoint.available import Available
from policies.endpoint.per_endpoint import PerEndpoint
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import Trace
from policies.options import OneOf
from policies.selection.by_score import ByScore, Choices
from policies.selection.two_choices import LESS_LOADED, TIE, TwoChoices, relative_load
from policies.stats.load import RateMeter

LOWER_RATE = "lower-rate"
"""Reason: equally loaded as others, and the fewest recent requests. Scores are requests per second and weight."""


class LeastInFlight(ByScore):
    """The least loaded, by in-flight per weight, of a few endpoints drawn at random (power of two choices).

    Mitzenmacher, IEEE TPDS 2001: two choices instead of one turn the longest queue from log n into log log n, and no
    view of all endpoints is needed, so that many balancers side by side do not herd. 0 choices: of all.

    A tie is broken at random, or with `tie = "rate"` in favour of the fewest recent requests. Below one request in
    flight per endpoint nearly all picks are ties, and two choices are no better than one. `tie = "rate"` is HAProxy's
    solution (`balance random`, since 3.4): of 1600 servers the busiest had 780 of a million requests, and 628 with it.
    """

    def __init__(
        self,
        rng: Random,
        *,
        choices: Choices = 2,
        tie: Annotated[
            str, 'choice among equals; `"rate"`: the fewest recent requests', OneOf(("random", "rate"))
        ] = "random",
    ) -> None:
        super().__init__(rng, choices)
        self._two = TwoChoices(rng.random)
        if choices == 2 and tie == "random":
            self.pick = self._two.pick  # type: ignore[method-assign]  # compiled
        self._rates: PerEndpoint[RateMeter] | None = None
        if tie == "rate":
            self._rates = PerEndpoint(RateMeter)
            self.members_changed = self._rates.members_changed

    @property
    def trace(self) -> Trace | None:
        return self._two.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._two.trace = trace

    def score(self, state: EndpointState, now: float) -> float:
        return relative_load(state, now)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick an endpoint in O(choices), or O(n) with 0 choices."""
        state = super().pick(facts, available, now)
        if self._rates is not None:
            self._rates[state].count(now)
        return state

    def _better(self, one: EndpointState, other: EndpointState, now: float) -> EndpointState:
        return self._least((one, other), now)

    def _note(self, trace: Trace, states: Sequence[EndpointState], scores: Sequence[float]) -> None:
        trace.note(LESS_LOADED if scores.count(min(scores)) == 1 else TIE, states, scores)

    def _one_of(self, equals: list[EndpointState], now: float) -> EndpointState:
        if self._rates is not None:
            rates = [self._rates[state].read(now) / state.weight for state in equals]
            if self.trace is not None:
                self.trace.note(LOWER_RATE, equals, rates)
            least = min(rates)
            equals = [state for state, rate in zip(equals, rates, strict=True) if rate == least]
        return super()._one_of(equals, now)
