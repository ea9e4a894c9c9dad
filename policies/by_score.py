"""The least score of a few, or of all: what the policies that rate endpoints have in common.

Rule of this file: drawn without replacement, and a tie is broken at random. A scan that gives ties to the first one
sends every request of an idle pool to the same endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from policies.errors import BadPolicyOption
from policies.insight.explanation import ONLY_ONE, Trace
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import Outcome, RequestFacts
from policies.two_choices import draw_two

LEAST_SCORE = "least-score"
"""The least of the scores of those who were considered."""

ON_TRIAL = 1e6
"""Seconds charged per request in flight at an endpoint that nothing is known of: more than at any that is known, so
it gets one trial at a time, and no stampede."""


def number_of_choices(choices: int) -> int:
    """The option of that name, if it is 0 or at least 2. Raises BadPolicyOption."""
    if choices < 0 or choices == 1:
        raise BadPolicyOption("choices", f"must be 0 (all) or >= 2, got {choices}")
    return choices


def to_first_byte(outcome: Outcome) -> float:
    """Seconds; the rest depends on the size of the answer and on how fast the client reads."""
    first = outcome.first_byte_at
    return (outcome.ended_at if first is None else first) - outcome.sent_at


class ByScore:
    """Picks the least `score` of `choices` endpoints drawn at random; 0 choices: of all."""

    trace: Trace | None = None

    def __init__(self, rng: Random, choices: int) -> None:
        self._random = rng.random
        self._sample = rng.sample
        self._choices = number_of_choices(choices)

    def score(self, state: EndpointState, now: float) -> float:
        """What one more request there is rated; the least wins."""
        raise NotImplementedError

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """O(choices); O(n) for all."""
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
            self.trace.note(LEAST_SCORE, states, scores)
        least = min(scores)
        first = scores.index(least)
        if scores.count(least) == 1:
            return states[first]
        return self._one_of(state for state, its in zip(states, scores, strict=True) if its == least)

    def _one_of(self, equals: Iterable[EndpointState]) -> EndpointState:
        tied = list(equals)
        return tied[int(self._random() * len(tied))]
