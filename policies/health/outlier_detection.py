"""Outlier detection (passive health checks): ejects endpoints that fail live traffic for a while.

A success costs nothing here. Consecutive failures are derived from totals that are kept anyway, and success rates from
the same totals once a second. An endpoint is not ejected while the others fail as well: then the fault is the
application's, and losing half the cluster would not help. One that is ejected for its responses then returns.

An outage of most endpoints ejects only half of them. Failures that would have ejected another are excused: its next
success ends them for the success rate, as the end of an ejection does, so that rates of the same period are compared.

Latency outliers wait many times as long as the median. Distance does not count: a latency is compared with the floor of
its own region, the least of its endpoints lately, and only the wait above that floor is compared across the cluster. So
a far region is judged like a near one, and one of two in a region is judged by the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from statistics import median

from policies.endpoint.ejection import Cause, EjectionRules, OutlierState
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, OutcomeKind, Region

PEERS_FAIL = 0.5
"""Success rate of the other endpoints below which consecutive failures do not count."""

OVERLOADED_FOR = 1.0
"""Seconds without a success until `busy` outcomes count. A worker whose queue is full rejects many in a row between two
that it takes; to eject it leaves more to the others, which are as full. A broken worker rejects for longer."""

MIN_WAIT_S = 0.05
"""Seconds of wait below which no endpoint is an outlier: waits in an idle cluster are all noise."""

MIN_ENDPOINTS = 3
"""Least number of measured endpoints: of two that differ neither can be called normal."""

SLOW_TICKS = 5
"""Consecutive ticks, a second apart, for which an endpoint must be slow: a GC pause is over by then."""

MIN_SUCCESSES = 5
"""Successes since its return before an endpoint is judged again."""


class OutlierDetector:
    """Decides which endpoint should be ejected; `ejection_limit.py` decides whether it may."""

    def __init__(self, rules: EjectionRules) -> None:
        self.rules = rules
        self._successes = self._requests = 0  # of the cluster, in the window, at the last tick
        self.is_common = False  # all healthy endpoints were failing as ones to be ejected, at the last tick
        self._alone: OutlierState | None = None  # of the only healthy endpoint at the last tick

    def verdict_on_failure(self, state: EndpointState, outcome: Outcome) -> Cause | None:
        """Return the reason to eject `state` now that a request to it has failed, or None. O(1).

        A failure does not count if a request that was sent later has succeeded, such as a timeout of long ago.
        """
        rules, record = self.rules, state.record
        if not rules.failures or outcome.sent_at < state.proven_at:
            return None
        ok = state.successes
        is_unanswered = outcome.is_unanswered
        is_connection = is_unanswered and outcome.kind is not OutcomeKind.TIMEOUT
        streak = record.streak(ok, outcome.ended_at, is_connection=is_connection, is_unanswered=is_unanswered)
        is_enough = streak >= rules.failures and record.exceeds_chance(streak)
        if not is_enough and not record.is_on_trial(ok):
            return None
        if outcome.kind is OutcomeKind.REFUSED:
            return Cause.UNREACHABLE
        if outcome.is_busy and outcome.ended_at - record.failing_since < OVERLOADED_FOR:
            return None
        if self.is_common or self._others(record) < PEERS_FAIL:
            record.excuse(ok, outcome.ended_at)
            return None
        if record.only_connections:
            return Cause.CONNECTIONS
        return Cause.TIMEOUTS if record.only_unanswered else Cause.FAILURES

    def measure(self, states: Sequence[EndpointState], now: float) -> None:
        """Update the success rates. Call about once a second.

        While only one endpoint is healthy, its rate does not count: there is none to compare it with, and it may be
        overloaded because it is alone.
        """
        self._successes = self._requests = 0
        if self._alone is not None:
            self._alone.forget_rate()
        healthy = [state.record for state in states if state.is_healthy]
        self._alone = healthy[0] if len(healthy) == 1 else None
        for state in states:
            state.record.measure(state.successes, state.failures, now, self.rules.window)
            successes, requests = state.record.rate
            self._successes += successes
            self._requests += requests
        since = now - self.rules.window
        self.is_common = all(record.is_excused and record.excused_at > since for record in healthy)

    def is_failing(self, state: EndpointState) -> bool:
        """Whether its success rate is clearly below that of the others."""
        rules = self.rules
        successes, requests = state.record.rate
        if not rules.success_rate or requests < rules.min_requests or state.record.is_excused:
            return False
        return successes < rules.success_rate * self._others(state.record) * requests

    def _others(self, record: OutlierState) -> float:
        """Return the success rate of all others; 1 while they have too few requests."""
        successes, requests = record.rate
        successes, requests = self._successes - successes, self._requests - requests
        return successes / requests if requests >= self.rules.min_requests else 1.0


def end_ejection(state: EndpointState, now: float) -> None:
    state.record.end_ejection(state.successes, now)
    state.latency.renew()  # the end of the ejection reports recovery


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
    successes = state.successes - state.record.ok_at_return
    return (
        state.is_healthy
        and state.is_measured(now)
        and state.latency.successes > 0.0
        and successes >= MIN_SUCCESSES
    )
