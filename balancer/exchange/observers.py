"""Observers of requests: the log, spans and mirrored copies see the steps of an exchange, and change none.

Most exchanges have none.
"""

from __future__ import annotations

from typing import Final

from balancer.errors import ForwardingError
from balancer.exchange.attempt import Attempt
from balancer.exchange.attempt_span import (
    AttemptSpan,
    Values,
    cluster_attributes,
    description_of,
    request_attributes,
    response_attributes,
    span_name,
)
from balancer.exchange.exchange_state import ExchangeState
from balancer.http.h1.traced_head import TracedRequest
from balancer.log.access_log import AccessLog
from balancer.log.formats import (
    HEAD_LIMIT,
    NOT_CONNECTED,
    TARGET_LIMIT,
    Entry,
    excerpt,
    fault_of,
    good_end,
)
from balancer.log.journal import Journal
from balancer.tracing.spans import Kind, Spans, SpanTrace
from balancer.tracing.tracing import Tracing
from policies.insight.explanation import Trace as Explained

# Module constants, because an imported name is looked up anew each time.
MOST_TARGET: Final = TARGET_LIMIT
MOST_HEAD: Final = HEAD_LIMIT
UNCONNECTED: Final = NOT_CONNECTED


class ExchangeObserver:
    """Events of an exchange, for the log, spans and copies; every method is empty here."""

    def started(self, exchange: ExchangeState) -> None:
        """The exchange has started; if it has no body, the whole request is known."""

    def body_came(self, exchange: ExchangeState, data: bytes) -> None:
        """Bytes of the request's body have come, without framing."""

    def request_came(self, exchange: ExchangeState, trailers: bytes) -> None:
        """The request's body is whole, and is passed on next; `trailers` is a block of fields or b""."""

    def queued(self, exchange: ExchangeState) -> None:
        """The request waits for an endpoint."""

    def picking(self, exchange: ExchangeState) -> None:
        """An endpoint is picked next."""

    def on_attempt(self, exchange: ExchangeState, attempt: Attempt) -> None:
        """An attempt begins at the endpoint that was picked; for a hedge, beside another."""

    def on_end(self, exchange: ExchangeState, error: ForwardingError | None) -> None:
        """The exchange has ended; `error` is what ended it, None for a normal end. Called once."""


class RequestLog(ExchangeObserver):
    """Adds an entry for each request to a journal: the access log or a recording."""

    def __init__(self, journal: Journal, arrived: tuple[float, float], route: str = "") -> None:
        """`arrived`: when the first byte of the head came, if the head came in pieces, and when all of it had. `route`
        is the label of the request's route."""
        self._journal = journal
        self._route = route
        self._arrived = arrived
        self._policy = ""  # that has picked the endpoint of the last attempt

    def on_attempt(self, exchange: ExchangeState, attempt: Attempt) -> None:
        self._policy = exchange.cluster.policy
        chosen = self._journal.chosen
        if chosen is not None and chosen.of_response is not None:
            attempt.is_read = True

    def on_end(self, exchange: ExchangeState, error: ForwardingError | None) -> None:
        journal, attempt, request, call = (
            self._journal, exchange.last_attempt, exchange.request, exchange.downstream.call
        )  # fmt: skip
        status = attempt.status if attempt is not None else 0
        log = journal if isinstance(journal, AccessLog) else None  # called directly, compiled
        seen = 500 if call is not None and call.has_failed else status
        if not (journal.takes(seen, error) if log is None else log.takes(seen, error)):
            return
        chosen = journal.chosen if log is None else log.chosen
        cluster, target, head = exchange.cluster, request.received_target, request.head
        fault = fault_of(error, cluster.process.error_bodies, cluster.error_form)
        entry = Entry(
            cluster.now(), fault, status,
            request.method, target if len(target) <= MOST_TARGET else target[:MOST_TARGET], request.id,
            head if len(head) <= MOST_HEAD else excerpt(head), request.fields.is_http10,
            exchange.downstream.client, None, exchange.attempts, UNCONNECTED, self._arrived, 0.0, 0.0, None,
            exchange.bytes_in, 0, cluster=cluster.name, grpc_status="" if call is None else call.status,
            policy=self._policy or cluster.policy, has_own_id=not request.fields.request_id,
        )  # fmt: skip
        if attempt is not None:
            assignment = attempt.assignment
            entry.endpoint, entry.connection = assignment.state.endpoint, attempt.connection
            entry.routed_at, entry.sent_at = assignment.routed_at, attempt.sent_at
            entry.first_byte_at, entry.bytes_out, entry.load = (
                attempt.first_byte_at, attempt.bytes_out, attempt.load
            )  # fmt: skip
            if request.target != target:
                entry.sent_target = request.target[:MOST_TARGET]
            if attempt.answer is not None:
                entry.answer = attempt.answer.facts
        if chosen is not None:
            fields = attempt.fields if attempt is not None and status else b""
            entry.extra = chosen.extra(request.head, fields, self._route)
        if log is None:
            journal.add(entry)
        else:
            log.add(entry)


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
    """Exports the spans of a sampled request.

    The span of the request ends when the exchange does; a hedged attempt that has lost ends later
    (`attempt_span.py`). The wait in the queue has a span of its own. Each is handed over at its end.
    """

    def __init__(
        self, request: TracedRequest, tracing: Tracing, spans: Spans, arrived: tuple[float, float]
    ) -> None:
        """`arrived` as in `RequestLog`."""
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
        if call is not None:
            values |= {"rpc.system.name": "grpc", "rpc.response.status_code": call.status}
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
