"""Observers of requests: the log, spans and mirrored copies see the steps of an exchange, and change none.

Most exchanges have none.
"""

from __future__ import annotations

from balancer.errors import ForwardingError
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange_state import ExchangeState
from balancer.log.formats import NOT_CONNECTED, TARGET_LIMIT, Entry, excerpt, fault_of
from balancer.log.journal import Journal


class ExchangeObserver:
    """What an exchange tells: each step does nothing unless a subclass wants it."""

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

    def on_attempt(self, exchange: ExchangeState, attempt: Attempt) -> None:
        chosen = self._journal.chosen
        if chosen is not None and chosen.of_response is not None:
            attempt.is_read = True

    def on_end(self, exchange: ExchangeState, error: ForwardingError | None) -> None:
        journal, attempt, request = self._journal, exchange.last_attempt, exchange.request
        status, bytes_out = (attempt.status, attempt.bytes_out) if attempt is not None else (0, 0)
        call = exchange.downstream.call
        grpc_status = "" if call is None else call.status
        if not journal.takes(500 if call is not None and call.has_failed else status, error):
            return
        endpoint, connection, routed_at, sent_at, first_byte_at = (
            (attempt.assignment.state.endpoint, attempt.connection, attempt.assignment.routed_at, attempt.sent_at,
             attempt.first_byte_at)
            if attempt is not None
            else (None, NOT_CONNECTED, 0.0, 0.0, None)
        )  # fmt: skip
        target = request.received_target
        is_sent = attempt is not None and request.target != target
        chosen, fault = journal.chosen, fault_of(error, exchange.cluster.process.error_bodies)
        journal.add(Entry(
            exchange.cluster.now(), fault, status, request.method, target[:TARGET_LIMIT],
            request.id, excerpt(request.head), request.fields.is_http10, exchange.downstream.client,
            endpoint, exchange.attempts, connection, self._arrived, routed_at, sent_at, first_byte_at,
            exchange.bytes_in, bytes_out, attempt.load if attempt is not None else None, exchange.cluster.name,
            grpc_status, request.target[:TARGET_LIMIT] if is_sent else b"",
            None if chosen is None else chosen.extra(
                request.head, attempt.fields if attempt is not None and status else b"", self._route
            ),
        ))  # fmt: skip
