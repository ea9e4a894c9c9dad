"""Latency ejection: who makes requests wait many times as long as is usual.

Rule of this file: distance is no fault. A latency is compared with the floor of its own region, the least that anybody
there has taken lately, and only what lies above that floor, the wait, is compared across the pool. So a far region is
judged like a near one, and one of two in a region is judged by the whole pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from policies.routing.facts import Region

if TYPE_CHECKING:
    from policies.routing.endpoint_state import EndpointState

LEAST = 0.05
"""Seconds of wait below which nobody is slow, whatever the others do: the times of an idle pool are all noise."""

FEWEST = 3
"""Endpoints that must be known: of two that differ nobody can say which one is usual."""

LASTING = 5
"""Looks in a row, a second apart: a pause for collecting garbage is over by then."""

TRUSTED = 5
"""Successes since it came back before it is judged again."""


def slow_ones(states: Iterable[EndpointState], factor: float, now: float) -> list[EndpointState]:
    """Who has waited more than `factor` times the pool's median for LASTING looks. To be called once a second."""
    waits = waits_of(states, now)
    if len(waits) < FEWEST:
        return []
    bound = max(LEAST, factor * median(waits.values()))
    for state, wait in waits.items():
        state.record.slow_for = state.record.slow_for + 1 if wait > bound else 0
    return [state for state in waits if state.record.slow_for >= LASTING]


def waits_of(states: Iterable[EndpointState], now: float) -> dict[EndpointState, float]:
    """Seconds above the floor of its region, of each that has been measured lately."""
    measured = [state for state in states if _is_known(state, now)]
    floors: dict[Region, float] = {}
    for state in measured:
        floors[state.region] = min(floors.get(state.region, inf), state.latency.floor)
    return {state: state.latency.mean - floors[state.region] for state in measured}


def _is_known(state: EndpointState, now: float) -> bool:
    successes = state.record.successes_since_return(state.successes)
    return state.is_sound and state.is_measured(now) and state.latency.has_succeeded and successes >= TRUSTED
