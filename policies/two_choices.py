"""Two drawn at random, and the less loaded of them: what most policies end in.

Rule of this file: functions without state, plain enough to be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from policies.insight.explanation import ONLY_ONE, Trace
from policies.routing.endpoint_state import EndpointState

LESS_LOADED: Final = "less-loaded"
"""The least loaded of those drawn."""

TIE: Final = "tie"
"""The first of those drawn; nobody drawn was less loaded."""


def less_loaded_of_two(
    available: list[EndpointState], random: Callable[[], float], now: float, trace: Trace | None = None
) -> EndpointState:
    """The less loaded of two of `available`, drawn without replacement; a tie goes to the first drawn."""
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


def draw_two(size: int, random: Callable[[], float]) -> tuple[int, int]:
    """Two different indices below `size` (>= 2), every ordered pair equally likely.

    `Random.sample` costs 3 µs, this a tenth of that.
    """
    first = int(random() * size)
    second = int(random() * (size - 1))
    return first, second if second < first else second + 1


FAILING: Final = 100.0
"""Requests in flight that an endpoint which fails every request seems to have more; one that fails 1 %, one
more.

Failures are quick, so whoever fails has little in flight: counted alone, that attracts (the sinkhole).
"""


def relative_load(state: EndpointState, now: float) -> float:
    """Requests in flight per unit of weight, failures charged."""
    return (state.in_flight + FAILING * state.blame(now)) / state.weight


def note_loads(trace: Trace, drawn: Sequence[EndpointState], now: float) -> None:
    """Say that the least loaded of those drawn is picked."""
    loads = [relative_load(state, now) for state in drawn]
    is_tie = loads.count(min(loads)) > 1
    trace.note(TIE if is_tie else LESS_LOADED, drawn, loads)
