"""Power of two choices: two endpoints drawn at random, and the less loaded of them.

Functions without state, simple enough to be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import ONLY_ONE, Trace

LESS_LOADED: Final = "less-loaded"
"""Reason: the least loaded of those drawn."""

TIE: Final = "tie"
"""Reason: the first of those drawn, as none is less loaded."""


def less_loaded_of_two(
    available: list[EndpointState], random: Callable[[], float], now: float, trace: Trace | None = None
) -> EndpointState:
    """Return the less loaded of two of `available`, drawn without replacement; a tie goes to the first drawn."""
    size = len(available)
    if size == 1:
        if trace is not None:
            trace.note(ONLY_ONE, available)
        return available[0]
    first, second = draw_two(size, random)
    one = available[first]
    other = available[second]
    if trace is not None:
        note_loads(trace, (one, other), now)
    if one.latency.failures or other.latency.failures:
        return other if relative_load(other, now) < relative_load(one, now) else one
    return other if other.in_flight * one.weight < one.in_flight * other.weight else one


class TwoChoices:
    """`less_loaded_of_two` as a policy."""

    def __init__(self, random: Callable[[], float]) -> None:
        self.trace: Trace | None = None
        self._random = random

    def pick(self, facts: RequestFacts, available: list[EndpointState], now: float) -> EndpointState:
        return less_loaded_of_two(available, self._random, now, self.trace)


def draw_two(size: int, random: Callable[[], float]) -> tuple[int, int]:
    """Return two different indices below `size` (>= 2), every ordered pair equally likely.

    `Random.sample` costs 3 µs, this a tenth of that.
    """
    first = int(random() * size)
    second = int(random() * (size - 1))
    return first, second if second < first else second + 1


FAILING: Final = 100.0
"""Failure penalty in requests in flight of an endpoint that fails every request; one that fails 1 % gets one.

Failures are fast, so a failing endpoint has few requests in flight, which alone would attract traffic (the sinkhole).
"""


def relative_load(state: EndpointState, now: float) -> float:
    """Return the requests in flight plus the failure penalty, per unit of weight."""
    return (state.in_flight + FAILING * state.failure_penalty(now)) / state.weight


def note_loads(trace: Trace, drawn: Sequence[EndpointState], now: float) -> None:
    """Record in `trace` that the least loaded of those drawn is picked."""
    loads = [relative_load(state, now) for state in drawn]
    is_tie = loads.count(min(loads)) > 1
    trace.note(TIE if is_tie else LESS_LOADED, drawn, loads)
