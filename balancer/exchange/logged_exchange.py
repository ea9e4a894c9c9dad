"""Exchange that adds an entry to a journal (access log or recording); used instead of `Exchange` while there is one.

It only observes. Every end of a request passes one of these methods and leaves one entry. Without a journal it costs
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from balancer.errors import ConnectionCut, ForwardingError
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange import ENDED, Exchange
from balancer.http.h1.request_head import Request
from balancer.log.formats import NOT_CONNECTED, TARGET_LIMIT, Entry, excerpt, fault_of

if TYPE_CHECKING:
    from balancer.exchange.proxy import Proxy
    from balancer.exchange.responder import Responder
    from balancer.log.journal import Journal


class LoggedExchange(Exchange):
    """An exchange with one entry in `log`."""

    def __init__(self, proxy: Proxy, downstream: Responder, request: Request, log: Journal) -> None:
        super().__init__(proxy, downstream, request)
        self._log = log
        self._arrived = downstream.head_at, downstream.came_at or proxy.now()
        self._is_logged = False

    def complete(self, attempt: Attempt, now: float) -> None:
        super().complete(attempt, now)
        self._note(None)

    def tunnel_ended(self, bytes_in: int, bytes_out: int, error: ConnectionCut | None) -> None:
        super().tunnel_ended(bytes_in, bytes_out, error)
        self._note(error)

    def abandon(self, error: ConnectionCut) -> None:
        had_ended = self.state is ENDED
        super().abandon(error)
        if not had_ended:
            self._note(error)

    def _answer(self, error: ForwardingError) -> None:
        super()._answer(error)
        self._note(error)

    def _cut(self, error: ForwardingError) -> None:
        super()._cut(error)
        self._note(error)

    def _note(self, error: ForwardingError | None) -> None:
        """Add the entry; `error` is what ended the request, None for a normal end."""
        log, attempt, request = self._log, self._attempt, self.request
        was_logged, self._is_logged = self._is_logged, True
        status, bytes_out = (attempt.status, attempt.bytes_out) if attempt is not None else (0, 0)
        call = self.downstream.call
        grpc_status = "" if call is None else call.status
        if was_logged or not log.takes(500 if call is not None and call.has_failed else status, error):
            return
        endpoint, connection, routed_at, sent_at, first_byte_at = (
            (attempt.assignment.state.endpoint, attempt.connection, attempt.assignment.routed_at, attempt.sent_at,
             attempt.first_byte_at)
            if attempt is not None
            else (None, NOT_CONNECTED, 0.0, 0.0, None)
        )  # fmt: skip
        target = request.received_target
        is_sent = attempt is not None and request.target != target
        log.add(Entry(
            self.proxy.now(), fault_of(error), status, request.method, target[:TARGET_LIMIT],
            request.id, excerpt(request.head), request.fields.is_http10, self.downstream.client,
            endpoint, self.attempts, connection, self._arrived, routed_at, sent_at, first_byte_at,
            self._bytes_in, bytes_out, attempt.load if attempt is not None else None, self.proxy.name,
            grpc_status, request.target[:TARGET_LIMIT] if is_sent else b"",
        ))  # fmt: skip
