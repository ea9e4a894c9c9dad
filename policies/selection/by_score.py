"""Least-score selection among a random sample or all endpoints: the base of the policies that score endpoints.

Samples are drawn without replacement and ties are broken at random: a scan that gives ties to the first endpoint sends
every request of an idle cluster to the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, RequestFacts
from policies.insight.explanation import ONLY_ONE, Trace
from policies.options import at_least
from policies.selection.two_choices import draw_two

LEAST_SCORE = "least-score"
"""Reason: the lowest score among the endpoints considered."""

TRIAL_COST_S = 1e6
"""Seconds charged per request in flight at an unmeasured endpoint: more than at any measured one, so it gets one trial
request at a time instead of a stampede."""


Choices = Annotated[int, "number of random candidates", at_least(2, zero="all")]


def to_first_byte(outcome: Outcome) -> float:
    """Return the seconds to the first byte; the rest depends on the response size and on the client's reading speed."""
    first = outcome.first_byte_at
    return (outcome.ended_at if first is None else first) - outcome.sent_at


class ByScore:
    """Picks the endpoint with the lowest `score` among `choices` drawn at random; with 0 choices, among all."""

    trace: Trace | None = None

    def __init__(self, rng: Random, choices: int) -> None:
        self._random = rng.random
        self._sample = rng.sample
        self._choices = choices

    def score(self, state: EndpointState, now: float) -> float:
        """Return the cost of one more request at `state`; the lowest wins."""
        raise NotImplementedError

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick an endpoint in O(choices), or O(n) with 0 choices."""
        size = len(available)
        if size == 1:
            if self.trace is not None:
                self.trace.note(ONLY_ONE, available)
            return available[0]
        if self._choices == 2:
            first, second = draw_two(size, self._random)
            return self._better(available[first], available[second], now)
        if 0 < self._choices < size:
            return self._least(self._sample(available, self._choices), now)
        return self._least(available, now)

    def _better(self, one: EndpointState, other: EndpointState, now: float) -> EndpointState:
        score, others = self.score(one, now), self.score(other, now)
        if self.trace is not None:
            self.trace.note(LEAST_SCORE, (one, other), (score, others))
        return other if others < score else one

    def _least(self, states: Sequence[EndpointState], now: float) -> EndpointState:
        score = self.score
        scores = [score(state, now) for state in states]
        if self.trace is not None:
            self._note(self.trace, states, scores)
        least = min(scores)
        first = scores.index(least)
        if scores.count(least) == 1:
            return states[first]
        return self._one_of([state for state, its in zip(states, scores, strict=True) if its == least], now)

    def _note(self, trace: Trace, states: Sequence[EndpointState], scores: Sequence[float]) -> None:
        trace.note(LEAST_SCORE, states, scores)

    def _one_of(self, equals: list[EndpointState], now: float) -> EndpointState:
        """Return one of the endpoints of the least score, at random; a subclass compares them by a second key first."""
        return equals[int(self._random() * len(equals))]
