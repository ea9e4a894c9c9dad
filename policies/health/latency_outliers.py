"""Latency outliers: ejects endpoints that wait many times as long as the median.

Distance does not count. A latency is compared with the floor of its own region, the least of its endpoints lately, and
only the wait above that floor is compared across the cluster. So a far region is judged like a near one, and one of two
in a region is judged by the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from statistics import median

from policies.endpoint.state import EndpointState
from policies.facts import Region

MIN_WAIT_S = 0.05
"""Seconds of wait below which no endpoint is an outlier: waits in an idle cluster are all noise."""

MIN_ENDPOINTS = 3
"""Least number of measured endpoints: of two that differ neither can be called normal."""

SLOW_TICKS = 5
"""Consecutive ticks, a second apart, for which an endpoint must be slow: a GC pause is over by then."""

MIN_SUCCESSES = 5
"""Successes since its return before an endpoint is judged again."""


def slow_ones(states: Iterable[EndpointState], factor: float, now: float) -> list[EndpointState]:
    """Return the endpoints whose wait exceeded `factor` times the cluster's median for SLOW_TICKS ticks.

    Call once a second.
    """
    waits = waits_of(states, now)
    if len(waits) < MIN_ENDPOINTS:
        return []
    bound = max(MIN_WAIT_S, factor * median(waits.values()))
    for state, wait in waits.items():
        state.record.slow_for = state.record.slow_for + 1 if wait > bound else 0
    return [state for state in waits if state.record.slow_for >= SLOW_TICKS]


def waits_of(states: Iterable[EndpointState], now: float) -> dict[EndpointState, float]:
    """Return the seconds above the floor of the region, for each endpoint measured lately."""
    measured = [state for state in states if _is_known(state, now)]
    floors: dict[Region, float] = {}
    for state in measured:
        floors[state.region] = min(floors.get(state.region, inf), state.latency.floor)
    return {state: state.latency.mean - floors[state.region] for state in measured}


def _is_known(state: EndpointState, now: float) -> bool:
    successes = state.record.successes_since_return(state.successes)
    return (
        state.is_healthy
        and state.is_measured(now)
        and state.latency.successes > 0.0
        and successes >= MIN_SUCCESSES
    )
