"""Condition of an endpoint: the one word, and the one line of text, that all views of the balancer show for it.

The status, the list of endpoints, metrics, health and the log take both from here, so that they agree.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from policies.endpoint.ejection import CONSECUTIVE, Cause
from policies.endpoint.state import EndpointState
from policies.facts import AdminState
from policies.health.active_checks import CheckState

if TYPE_CHECKING:
    from balancer.upstream.pool import Pool


class Condition(Enum):
    """Condition of an endpoint, from the best to the worst: ready, or why it gets no requests."""

    READY = "ready"
    WARMING = "warming"
    """In slow start."""

    FULL = "full"
    EJECTED = "ejected"
    """By outlier detection, for failing requests that reached it."""

    FAILING_CHECKS = "failing checks"
    UNREACHABLE = "unreachable"
    """Connecting fails, and no connection is open."""

    DRAINING = "draining"
    MAINTENANCE = "maintenance"


DOWN = frozenset((Condition.EJECTED, Condition.FAILING_CHECKS, Condition.UNREACHABLE))
"""Conditions that are evidence against the endpoint."""

STAYING = frozenset((Condition.DRAINING.value, Condition.MAINTENANCE.value))
"""Conditions in which an endpoint gets no more requests and ends those that it has."""

CAUSES = {
    Cause.UNREACHABLE: "no connection",
    Cause.CONNECTIONS: "broken connections",
    Cause.TIMEOUTS: "timeouts",
    Cause.FAILURES: "consecutive failures",
    Cause.SUCCESS_RATE: "success rate",
    Cause.LATENCY: "latency",
}

_ADMIN = {AdminState.DRAIN: Condition.DRAINING, AdminState.MAINTENANCE: Condition.MAINTENANCE}


def condition_of(state: EndpointState, pool: Pool) -> Condition:
    """Return the condition of an endpoint with this connection pool. O(1)."""
    if not state.enabled:
        return _ADMIN[state.admin_state]
    if not state.passes_checks:
        return Condition.FAILING_CHECKS
    if state.record.is_unreachable or pool.is_unreachable:
        return Condition.UNREACHABLE
    if state.is_ejected:
        return Condition.EJECTED
    if state.is_full:
        return Condition.FULL
    return Condition.WARMING if state.share < 1.0 else Condition.READY


def condition_text(
    condition: Condition, state: EndpointState, pool: Pool, check: CheckState | None, now: float
) -> str:
    """Describe the condition of an endpoint in one line; `check` is the state of its active checks, if it has any."""
    in_flight = state.in_flight_here
    text = condition.value
    if condition is Condition.FULL:
        text = full_text(in_flight, int(state.limit))
    elif condition is Condition.WARMING:
        text = f"warming up: {state.share:.0%} of its share"
    elif text in STAYING and in_flight:
        text = staying_text(text, in_flight)
    elif condition is Condition.EJECTED:
        text = f"ejected, {max(0.0, (state.record.until or now) - now):.0f} s left ({cause_of(state)})"
    elif condition in DOWN:
        failed_at = pool.failed_at
        if condition is Condition.FAILING_CHECKS and check is not None:
            failed_at = check.failed_at
        text = f"{condition.value}: {fault_of(condition, pool, check)} (last {max(0.0, now - failed_at):.0f} s ago)"
    gets_requests = condition in DOWN and state.is_eligible and not state.is_healthy
    return f"{text}; gets requests in panic" if gets_requests else text


def fault_of(condition: Condition, pool: Pool, check: CheckState | None) -> str:
    """Return the last fault that made an endpoint fail its checks or be unreachable."""
    fault = pool.last_fault
    if condition is Condition.FAILING_CHECKS and check is not None:
        fault = check.last_fault
    return fault or "no connection"


def cause_of(state: EndpointState) -> str:
    """Return the cause of an ejection in words."""
    cause = state.record.cause
    return "unknown" if cause is None else CAUSES[cause]


def staying_text(condition: str, in_flight: int) -> str:
    """Describe an endpoint that gets no more requests and has some."""
    return f"{condition}, {in_flight} in flight"


def full_text(in_flight: int, limit: int) -> str:
    """Describe an endpoint that takes no more requests at once."""
    return f"full: {in_flight} of {limit} in flight"


def may_answer(state: EndpointState, condition: Condition, now: float) -> bool:
    """Return whether a request could be served by this endpoint, as far as is known.

    It gets requests, and nothing speaks against it: checks and connects succeed, and it is not ejected for consecutive
    failures. In panic an endpoint gets requests in spite of its health; it then counts if the last one succeeded within
    FORGET_AFTER, as with a wrong path of the checks. Only evidence that is renewed without requests counts against an
    endpoint (checks, connects, the end of an ejection), or a balancer that is not ready could never become ready again.
    """
    if not state.is_eligible:
        return False
    is_down = condition in DOWN and (condition is not Condition.EJECTED or state.record.cause in CONSECUTIVE)
    return not is_down or _has_just_answered(state, now)


def _has_just_answered(state: EndpointState, now: float) -> bool:
    latency = state.latency
    return latency.successes > 0.0 and latency.measured_at > latency.failed_at and state.is_measured(now)
