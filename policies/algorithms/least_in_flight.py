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
from policies.errors import BadPolicyOption
from policies.facts import RequestFacts
from policies.insight.explanation import ONLY_ONE, Trace
from policies.selection.by_score import number_of_choices
from policies.selection.two_choices import TwoChoices, draw_two, note_loads, relative_load

TIES = ("random", "rate")

LOWER_RATE = "lower-rate"
"""Reason: equally loaded as others, and the fewest recent requests. Scores are requests in the last second."""


class LeastInFlight:
    """The least loaded, by in-flight per weight, of a few endpoints drawn at random (power of two choices).

    Mitzenmacher, IEEE TPDS 2001: two choices instead of one turn the longest queue from log n into log log n, and no
    view of all endpoints is needed, so that many balancers side by side do not herd. 0 choices: of all.

    A tie is broken at random, or with `tie = "rate"` in favour of the fewest requests in the last second. Below one
    request in flight per endpoint nearly all picks are ties, and two choices are no better than one. `tie = "rate"` is
    HAProxy's solution (`balance random`, since 3.4): of 1600 servers the busiest had 780 of a million requests, and 628
    with it.
    """

    def __init__(
        self,
        rng: Random,
        *,
        choices: Annotated[int, "number of random candidates; 0: all"] = 2,
        tie: Annotated[
            str, 'choice among equals: `"random"`, or `"rate"`: the fewest requests in the last second'
        ] = "random",
    ) -> None:
        self._random = rng.random
        self._sample = rng.sample
        self._choices = number_of_choices(choices)
        if tie not in TIES:
            raise BadPolicyOption("tie", f"must be one of {', '.join(TIES)}, got '{tie}'")
        self._two = TwoChoices(rng.random)
        if choices == 2 and tie == "random":
            self.pick = self._two.pick  # type: ignore[method-assign]  # compiled
        self._recent: RecentRequests | None = None
        if tie == "rate":
            self._recent = RecentRequests()
            self.members_changed = self._recent.counts.members_changed

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick an endpoint in O(choices), or O(n) with 0 choices."""
        if len(available) == 1:
            if self.trace is not None:
                self.trace.note(ONLY_ONE, available)
            return available[0]
        drawn = self._drawn(available)
        if self.trace is not None:
            note_loads(self.trace, drawn, now)
        equals = least_loaded(drawn, now)
        state = equals[0] if len(equals) == 1 else self._one_of(equals, now)
        if self._recent is not None:
            self._recent.count(state, now)
        return state

    @property
    def trace(self) -> Trace | None:
        """Where explanations are recorded; None if they are not."""
        return self._two.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._two.trace = trace

    def _drawn(self, available: Available) -> Sequence[EndpointState]:
        size, choices = len(available), self._choices
        if choices == 2:
            first, second = draw_two(size, self._random)
            return available[first], available[second]
        return self._sample(available, choices) if 0 < choices < size else available

    def _one_of(self, equals: list[EndpointState], now: float) -> EndpointState:
        if self._recent is not None:
            rates = [self._recent.of(state, now) for state in equals]
            if self.trace is not None:
                self.trace.note(LOWER_RATE, equals, rates)
            least = min(rates)
            equals = [state for state, rate in zip(equals, rates, strict=True) if rate == least]
        return equals[0] if len(equals) == 1 else equals[int(self._random() * len(equals))]


def least_loaded(states: Sequence[EndpointState], now: float) -> list[EndpointState]:
    """Return the endpoints with the lowest relative load."""
    loads = [
        relative_load(state, now) if state.latency.failures else state.in_flight / state.weight
        for state in states
    ]
    least = min(loads)
    return [state for state, its in zip(states, loads, strict=True) if its == least]


class Count:
    """Requests of the second that began at `since`, and of the one before."""

    def __init__(self) -> None:
        self.since = -1.0
        self.here = self.before = 0

    def turn(self, now: float) -> None:
        """Shift the counters if another second has begun."""
        age = now - self.since
        if age >= 1.0:
            self.before = self.here if age < 2.0 else 0
            self.here = 0
            self.since = now if age >= 2.0 else self.since + 1.0


class RecentRequests:
    """Picks in the last second, by endpoint.

    Two counters per endpoint and no timer. The count of the previous second decays linearly during the present one,
    which is within a request or two of a sliding window and costs two comparisons.
    """

    def __init__(self) -> None:
        self.counts: PerEndpoint[Count] = PerEndpoint(Count)

    def count(self, state: EndpointState, now: float) -> None:
        """Count one pick of `state` at `now`."""
        count = self.counts[state]
        if now - count.since >= 1.0:
            count.turn(now)
        count.here += 1

    def of(self, state: EndpointState, now: float) -> float:
        """Return the requests in the last second, per unit of weight."""
        count = self.counts[state]
        if now - count.since >= 1.0:
            count.turn(now)
        return (count.here + count.before * (1.0 - (now - count.since))) / state.weight
