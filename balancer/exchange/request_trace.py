"""Observer that exports the spans of a sampled request.

The span of the request ends when the exchange does; a hedged attempt that has lost ends later
(`attempt_span.py`). The wait in the queue has a span of its own. Each is handed over at its end.
"""

from __future__ import annotations

from typing import Final

from balancer.errors import ForwardingError
from balancer.exchange.attempt import Attempt
from balancer.exchange.attempt_span import AttemptSpan, cluster_attributes, description_of
from balancer.exchange.exchange_state import ExchangeState
from balancer.exchange.observers import ExchangeObserver
from balancer.exchange.span_attributes import (
    Values,
    call_attributes,
    request_attributes,
    response_attributes,
    span_name,
)
from balancer.http.h1.traced_head import TracedRequest
from balancer.log.formats import fault_of, good_end
from balancer.tracing.spans import Kind, Spans, SpanTrace
from balancer.tracing.tracing import Tracing
from policies.insight.explanation import Trace as Explained

FIRST: Final = "first"
RETRY: Final = "retry"
HEDGE: Final = "hedge"
SERVED: Final = "served"
ABANDONED: Final = "abandoned"
REJECTED: Final = "rejected"
TUNNEL: Final = "tunnel"

ERROR_TO_CLIENT: Final = 500
"""Lowest status that is an error of a server's span (semantic conventions)."""


class RequestTrace(ExchangeObserver):
    """Exports the spans of a request."""

    def __init__(
        self, request: TracedRequest, tracing: Tracing, spans: Spans, arrived: tuple[float, float]
    ) -> None:
        """`arrived`: when the first byte of the head came, if the head came in pieces, and when all of it had."""
        self._traced = request
        self._trace = SpanTrace(spans, tracing.ids, request.trace_id, request.tracestate, request.span_id)
        self._arrived = arrived
        self._waits_since = 0.0
        self._explains = False  # the router explains its picks for this trace

    # --- the wait queue

    def queued(self, exchange: ExchangeState) -> None:
        self._stop_explaining(exchange)
        self._waits_since = exchange.cluster.now()

    def _end_wait(self, exchange: ExchangeState, outcome: str) -> None:
        """Export the wait in the queue, if there is one."""
        since, self._waits_since = self._waits_since, 0.0
        if since:
            trace, now = self._trace, exchange.cluster.now()
            values: Values = {"steelyard.outcome": outcome, "steelyard.level": exchange.level}
            error = None if outcome in (SERVED, ABANDONED) else outcome
            trace.add("queue", Kind.INTERNAL, trace.new_span(), trace.root, since, now, values, error)

    # --- attempts

    def picking(self, exchange: ExchangeState) -> None:
        self._end_wait(exchange, SERVED)
        if exchange.cluster.router.trace is None:
            exchange.cluster.router.explain(Explained())
            self._explains = True

    def _stop_explaining(self, exchange: ExchangeState) -> None:
        if self._explains:
            self._explains = False
            exchange.cluster.router.explain(None)

    def on_attempt(self, exchange: ExchangeState, attempt: Attempt) -> None:
        number = exchange.attempts
        kind = HEDGE if exchange.last_attempt is not None else RETRY if number else FIRST
        attempt.span = span = AttemptSpan(
            exchange.cluster, attempt.assignment, self._traced, self._trace, number, kind
        )
        attempt.head = self._traced.head_naming(span.id)
        self._stop_explaining(exchange)

    # --- the end

    def on_end(self, exchange: ExchangeState, error: ForwardingError | None) -> None:
        self._stop_explaining(exchange)
        request, attempt, fault = self._traced, exchange.last_attempt, fault_of(error)
        call = exchange.downstream.call
        status = attempt.status if attempt is not None else 0
        end = good_end(request.method, status) if fault is None else fault.end
        self._end_wait(exchange, SERVED if fault is None else ABANDONED if end == ABANDONED else fault.reason)
        if fault is not None and not status and fault.is_sent:
            status = fault.status
        values = request_attributes(request, exchange.downstream.client)
        values |= response_attributes(status, fault, ERROR_TO_CLIENT)
        values |= call_attributes(call)
        values |= {
            "steelyard.outcome": end,
            "steelyard.policy": exchange.cluster.policy,
            "steelyard.attempts": exchange.attempts,
            **cluster_attributes(exchange.cluster),
        }
        if attempt is not None:
            endpoint = attempt.assignment.endpoint
            values |= {"steelyard.endpoint": endpoint.id, "steelyard.region": endpoint.region}
        is_error = status >= ERROR_TO_CLIENT or (
            fault is not None and end not in (ABANDONED, REJECTED, TUNNEL)
        )
        is_error = is_error or (call is not None and call.has_failed)
        head_at, began_at = self._arrived
        self._trace.add(
            span_name(request.method), Kind.SERVER, request.span_id, request.parent_id, head_at or began_at,
            exchange.cluster.now(), values, description_of(fault) if is_error else None,
        )  # fmt: skip
