"""Retry rules: when a request may be sent again.

Only requests whose repetition has the same effect are repeated (RFC 9110 § 9.2.2). A request that no worker can have
received may be retried whatever its method, outside the retry budget, because it has caused no work; after a refused
connection every other endpoint may be tried. One that a worker may have received is retried only if it is idempotent,
and within the budget.
"""

from __future__ import annotations

from balancer.errors import ConnectFailed, ConnectionBroken, MalformedResponse, UpstreamError
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange_state import ExchangeState


def may_retry(exchange: ExchangeState, attempt: Attempt, error: UpstreamError) -> bool:
    """Return whether a failure can be retried (RFC 9110 § 9.2.2)."""
    if isinstance(error, ConnectFailed):
        if error.is_prompt:
            _leave_out_unreachable(exchange)
        return _has_another_try(exchange, attempt, needs_other=False)
    if isinstance(error, MalformedResponse):  # the same endpoint would send the same
        return may_repeat(exchange, attempt, needs_other=True)
    return isinstance(error, ConnectionBroken) and may_repeat(exchange, attempt, needs_other=False)


def may_repeat(exchange: ExchangeState, attempt: Attempt, *, needs_other: bool) -> bool:
    """Return whether a request that a worker may have received can be retried; draws on the retry budget."""
    is_repeatable = exchange.rules.is_repeatable(exchange)
    return is_repeatable and take_another_try(exchange, attempt, needs_other=needs_other)


def take_another_try(exchange: ExchangeState, attempt: Attempt, *, needs_other: bool) -> bool:
    """Return whether another attempt is possible and within the retry budget, which it is then charged to."""
    cluster = exchange.cluster
    has_another_try = _has_another_try(exchange, attempt, needs_other=needs_other)
    return has_another_try and cluster.retries.budget.take(cluster.counts.requests, cluster.now())


def _leave_out_unreachable(exchange: ExchangeState) -> None:
    """Count endpoints that connects back off from as tried: the request would fail there without a connect.

    Otherwise each request would fail at all of them, one after another, where a thousand are dead.
    """
    pools = exchange.cluster.pools.by_id
    exchange.tried |= {
        state.id for state in exchange.cluster.router.available if pools[state.id].is_backing_off
    }


def _has_another_try(exchange: ExchangeState, attempt: Attempt, *, needs_other: bool) -> bool:
    """Return whether another attempt is possible. Its body must not have been dropped."""
    cluster, body, state = exchange.cluster, exchange.body_buffer, attempt.assignment.state
    if body is not None and body.is_spent:
        return False
    return cluster.router.has_another_try(
        cluster.retries.limit,
        exchange.attempts,
        exchange.unsent,
        exchange.tried | {state.id},
        needs_other=needs_other,
    )
