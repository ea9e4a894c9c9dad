"""Observer that exports the spans of a sampled request.

The span of the request ends when the exchange does, that of an attempt when it is settled: a hedged
attempt that has lost ends later than the request. The wait in the queue and the wait for a connection have spans of
their own. Each is handed over at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from balancer.errors import ForwardingError
from balancer.exchange.attempt import Attempt
from balancer.exchange.observers import Observer
from balancer.exchange.routed_attempt import RoutedAttempt
from balancer.exchange.span_attributes import (
    Values,
    attempt_attributes,
    call_attributes,
    phase_attributes,
    pick_attributes,
    request_attributes,
    response_attributes,
    span_name,
)
from balancer.http.h1.traced_head import TracedRequest
from balancer.log.formats import NOT_CONNECTED, Fault, fault_of, good_end
from balancer.tracing.spans import Kind, Spans, Trace
from balancer.upstream.dial.phases import NOTHING
from policies.facts import OutcomeKind
from policies.insight.explanation import Trace as Explained

if TYPE_CHECKING:
    from balancer.cluster.cluster import Cluster
    from balancer.exchange.exchange import Exchange
    from balancer.tracing.tracing import Tracing
    from balancer.upstream.request import UpstreamRequest
    from policies.routing.assignment import Assignment

FIRST: Final = "first"
RETRY: Final = "retry"
HEDGE: Final = "hedge"
SERVED: Final = "served"
ABANDONED: Final = "abandoned"
REJECTED: Final = "rejected"
TUNNEL: Final = "tunnel"

ERROR_TO_CLIENT: Final = 500
ERROR_OF_WORKER: Final = 400
"""Lowest status that is an error: of a server's span 4xx is none, of a client's span it is (semantic conventions)."""


class RequestTrace(Observer):
    """Exports the spans of a request."""

    def __init__(
        self, request: TracedRequest, tracing: Tracing, spans: Spans, arrived: tuple[float, float]
    ) -> None:
        """`arrived`: when the first byte of the head came, if the head came in pieces, and when all of it had."""
        self._traced = request
        self._trace = Trace(spans, tracing.ids, request.trace_id, request.tracestate, request.span_id)
        self._arrived = arrived
        self._waits_since = 0.0
        self._explains = False  # the router explains its picks for this trace

    # --- the wait queue

    def queued(self, exchange: Exchange) -> None:
        self._stop_explaining(exchange)
        self._waits_since = exchange.cluster.now()

    def _end_wait(self, exchange: Exchange, outcome: str) -> None:
        """Export the wait in the queue, if there is one."""
        since, self._waits_since = self._waits_since, 0.0
        if since:
            trace, now = self._trace, exchange.cluster.now()
            values: Values = {"steelyard.outcome": outcome, "steelyard.level": exchange.level}
            error = None if outcome in (SERVED, ABANDONED) else outcome
            trace.add("queue", Kind.INTERNAL, trace.new_span(), trace.root, since, now, values, error)

    # --- attempts

    def picking(self, exchange: Exchange) -> None:
        self._end_wait(exchange, SERVED)
        if exchange.cluster.router.trace is None:
            exchange.cluster.router.explain(Explained())
            self._explains = True

    def _stop_explaining(self, exchange: Exchange) -> None:
        if self._explains:
            self._explains = False
            exchange.cluster.router.explain(None)

    def on_attempt(self, exchange: Exchange, attempt: Attempt) -> None:
        number = exchange.attempts
        kind = HEDGE if exchange.last_attempt is not None else RETRY if number else FIRST
        attempt.span = span = AttemptSpan(
            exchange.cluster, attempt.assignment, self._traced, self._trace, number, kind
        )
        attempt.head = self._traced.head_naming(span.id)
        self._stop_explaining(exchange)

    # --- the end

    def on_end(self, exchange: Exchange, error: ForwardingError | None) -> None:
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
            **_cluster(exchange.cluster),
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
            exchange.cluster.now(), values, _description(fault) if is_error else None,
        )  # fmt: skip


class AttemptSpan:
    """Span of an attempt, which the traceparent that the worker receives names; `number` counts from 0."""

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        request: TracedRequest,
        trace: Trace,
        number: int,
        kind: str,
    ) -> None:
        self.id = trace.new_span()
        self._trace = trace
        self._assignment = assignment
        self._name = span_name(request.method)
        self._fault: Fault | None = None
        self._phases = NOTHING
        self._has_waited = False
        picks = cluster.router.trace
        self._values = attempt_attributes(request, assignment.endpoint, number)
        self._values |= pick_attributes(picks.last if picks is not None else None)
        self._values |= {"steelyard.policy": cluster.policy, "steelyard.attempt": kind, **_cluster(cluster)}

    def connected(self, upstream: UpstreamRequest) -> None:
        """Note the connection that the attempt has waited for."""
        self._has_waited = True
        self._phases = upstream.phases

    def failed(self, error: ForwardingError) -> None:
        """Note the error that ends the attempt."""
        self._fault = fault_of(error)

    def ended(self, attempt: RoutedAttempt, kind: OutcomeKind, now: float) -> None:
        """Export the span of a settled attempt, and that of its wait for a connection."""
        is_failure = kind.is_failure or self._fault is not None
        error = _description(self._fault) or kind.value if is_failure else None
        if attempt.connection == NOT_CONNECTED:
            self._export_connect(attempt, now, error)
        elif self._has_waited:
            self._export_connect(attempt, attempt.sent_at, None)
        values = self._values
        values |= response_attributes(attempt.status, self._fault, ERROR_OF_WORKER)
        if is_failure:
            values.setdefault("error.type", kind.value)
        values["steelyard.outcome"] = kind.value
        values["steelyard.connection"] = attempt.connection
        if attempt.has_lost:
            values["steelyard.lost"] = True
        is_error = is_failure or attempt.status >= ERROR_OF_WORKER
        self._trace.add(
            self._name, Kind.CLIENT, self.id, self._trace.root, self._assignment.routed_at, now, values,
            error or "" if is_error else None,
        )  # fmt: skip

    def _export_connect(self, attempt: RoutedAttempt, end: float, error: str | None) -> None:
        """Export the wait for a connection."""
        trace, values = self._trace, phase_attributes(self._phases)
        values["steelyard.connection"] = attempt.connection
        trace.add(
            "connect",
            Kind.INTERNAL,
            trace.new_span(),
            self.id,
            self._assignment.routed_at,
            end,
            values,
            error,
        )


def _cluster(cluster: Cluster) -> Values:
    """Return the attribute of a named cluster."""
    return {"steelyard.cluster": cluster.name} if cluster.name else {}


def _description(fault: Fault | None) -> str:
    return "" if fault is None else f"{fault.reason}: {fault.detail}"
