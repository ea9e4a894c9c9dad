"""Eligibility of endpoints: active checks, outlier detection, panic and slow start combined.

A request that succeeds costs nothing here, one that fails a few comparisons, and a change of one endpoint a few
counters. All endpoints are scanned once a second, in a microsecond each, and on every change while there is panic or a
slow start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from policies.endpoint.ejection import CONSECUTIVE, Cause, EjectionRules
from policies.endpoint.state import EndpointState
from policies.facts import AdminState, Outcome
from policies.health.ejection_limit import HealthCounts, LastSuccesses, max_ejected, max_ejected_in_region
from policies.health.outlier_detection import OutlierDetector, end_ejection, slow_ones
from policies.health.panic import Panic, is_wanted
from policies.health.slow_start import SlowStart

NEVER = EjectionRules(failures=0, success_rate=0.0)


class Health:
    """Health mechanisms of one router; those that are not given are off. `counts` counts unhealthy endpoints."""

    def __init__(
        self,
        rng: Random,
        *,
        ejection: EjectionRules | None = None,
        panic: Panic | None = None,
        slow_start: SlowStart | None = None,
    ) -> None:
        self._rng = rng
        self.ejection = OutlierDetector(ejection or NEVER)
        self.panic = panic if panic is not None else Panic(share=0.0)
        self.slow_start = slow_start if slow_start is not None else SlowStart()
        self.counts = HealthCounts()
        self._last_successes = LastSuccesses()

    def apply(self, other: Health) -> None:
        """Apply the rules of `other` from now on; current ejections keep their end."""
        self.ejection.rules = other.ejection.rules
        self.panic.share, self.panic.overprovisioning = other.panic.share, other.panic.overprovisioning
        self.slow_start.window, self.slow_start.minimum = other.slow_start.window, other.slow_start.minimum

    def evaluate(self, states: Sequence[EndpointState], now: float, routed: int, *, warms: bool) -> None:
        """Update `is_healthy` and `is_eligible` of all endpoints.

        `warms`: an endpoint that took no requests before and does now begins a slow start.
        """
        self._update_health(states, now, warms)
        if self._enforce_ejection_limit(states, now):
            self._update_health(states, now, warms)
        self.panic.evaluate(self.counts, routed)
        self.panic.admit(states)
        if self.slow_start:
            self.slow_start.advance(states, now)

    def withdraw(self, state: EndpointState) -> None:
        """Remove `state` from the counts before a change of the endpoint or its admin state; `enter` must follow."""
        self.counts.remove(state)

    def enter(self, states: Sequence[EndpointState], state: EndpointState, now: float, routed: int) -> bool:
        """Like `evaluate`, if only `state` was added, updated or removed; `states` are all present ones.

        Returns whether `is_eligible` of others may have changed. O(regions), unless there is panic or more are
        ejected than may be now; O(n) for the first slow start.
        """
        was_panic, was_healthy = bool(self.panic), state.is_healthy
        is_returning = False
        state.is_healthy = is_wanted(state) and state.passes_health
        if state.is_member:
            self.counts.add(state)
        if state.is_healthy and not (was_healthy or state.is_eligible):
            self.slow_start.begin_alone(state, states, now)
        if self.counts.exceeds_limit(state.region) and self._enforce_ejection_limit(states, now):
            is_returning = True
            self._update_health(states, now, warms=True)
        self.panic.evaluate(self.counts, routed)
        state.is_eligible = state.is_healthy
        if was_panic or self.panic or is_returning:
            self.panic.admit(states)
            return True
        return False

    def _update_health(self, states: Sequence[EndpointState], now: float, warms: bool) -> None:
        for state in states:
            was_healthy = state.is_healthy
            state.is_healthy = is_wanted(state) and state.passes_health
            if warms and state.is_healthy and not (was_healthy or state.is_eligible):  # a panic keeps it warm
                self.slow_start.begin(state, now)
        self.counts = HealthCounts(states)

    def failed(self, state: EndpointState, outcome: Outcome) -> bool:
        """Record a failed request; return whether the endpoint was ejected for it. O(1)."""
        if state.is_healthy:
            cause = self.ejection.verdict_on_failure(state, outcome)
            if cause is None:
                return False
            if self._eject(state, cause, outcome.ended_at):
                return True
        state.record.excuse(state.successes, outcome.ended_at)
        return False

    def tick(self, states: Sequence[EndpointState], now: float) -> bool:
        """Run periodic work, about once a second; return whether an endpoint was ejected or has returned."""
        is_common = self.ejection.is_common
        due = [state for state in states if state.record.is_due(now, is_common=is_common)]
        for state in due:
            end_ejection(state, now)
            if is_common:  # until it succeeds, it counts as one that fails as well
                state.record.excuse(state.successes, now)
        has_changed = bool(due)
        rules = self.ejection.rules
        if rules.success_rate or rules.failures:
            self._last_successes.look(states, now)
            self.ejection.measure(states, now)
            for state in states:
                if state.is_healthy and self.ejection.is_failing(state):
                    has_changed |= self._eject(state, Cause.SUCCESS_RATE, now)
        if rules.latency:
            for state in slow_ones(states, rules.latency, now):
                has_changed |= state.is_healthy and self._eject(state, Cause.LATENCY, now)
        return has_changed

    def readmit(self, state: EndpointState, now: float, *, is_answered: bool) -> bool:
        """Note a check that was answered, or else a connect; return whether this ended an ejection."""
        record = state.record
        if not record.ends_by_check(is_answered=is_answered) or now < record.returns_from:
            return False
        end_ejection(state, now)
        return True

    def _eject(self, state: EndpointState, cause: Cause, now: float) -> bool:
        """Eject `state` unless the limits forbid it; return whether it was ejected."""
        counts = self.counts
        is_certain = cause is Cause.UNREACHABLE or (
            cause in CONSECUTIVE and self._last_successes.is_lost(state.region, now)
        )
        if not counts.can_spare() or not (is_certain or counts.region_can_spare(state.region)):
            return False
        counts.remove(state)
        state.record.eject(cause, now, self.ejection.rules, self._rng)
        state.record.is_certain = is_certain
        state.is_healthy = False
        counts.add(state)
        return True

    def _enforce_ejection_limit(self, states: Sequence[EndpointState], now: float) -> bool:
        """Return ejected endpoints to the cluster, soonest due first, where a smaller one allows fewer ejections."""
        out = [
            state
            for state in states
            if state.record.until is not None and state.admin_state is AdminState.READY
        ]
        if not out:
            return False
        sizes = self.counts.size
        returning = surplus(out, max_ejected(sizes[None]))
        for region in {state.region for state in out}:
            members = [state for state in out if state.region == region and not state.record.is_certain]
            returning |= surplus(members, max_ejected_in_region(sizes[region]))
        for state in returning:
            end_ejection(state, now)
        return bool(returning)


def surplus(ejected: Iterable[EndpointState], allowed: int) -> set[EndpointState]:
    """Return those above the number allowed, soonest due first."""
    by_due = sorted(ejected, key=lambda state: state.record.until or 0.0)
    return set(by_due[: max(0, len(by_due) - allowed)])
