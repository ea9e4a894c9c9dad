"""Exchange that adds an entry to a journal (access log or recording); used instead of `Exchange` while there is one.

It only observes. Every end of a request passes one of these methods and leaves one entry. Without a journal it costs
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from balancer.errors import CLIENT_LEFT, ForwardingError
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange import ENDED, Exchange
from balancer.http1.request_head import Request
from balancer.http1.response_head import Response
from balancer.log.formats import NEW, NOT_CONNECTED, REUSED, TARGET_LIMIT, Entry, excerpt, fault_of
from balancer.upstream.request import UpstreamRequest

if TYPE_CHECKING:
    from balancer.exchange.client_connection import ClientConnection
    from balancer.exchange.proxy import Proxy
    from balancer.log.journal import Journal


class LoggedExchange(Exchange):
    """An exchange with one entry in `log`."""

    def __init__(self, proxy: Proxy, downstream: ClientConnection, request: Request, log: Journal) -> None:
        super().__init__(proxy, downstream, request)
        self._log = log
        self._arrived = downstream.head_at, downstream.came_at or proxy.now()
        self._is_logged = False

    # --- recorded on the way

    def _send(self, attempt: Attempt, upstream: UpstreamRequest) -> None:
        attempt.connection = REUSED if upstream.idle_since else NEW
        super()._send(attempt, upstream)

    # --- ends

    def response_whole(self, response: Response, body: bytes) -> None:
        super().response_whole(response, body)
        if self.state is ENDED:
            self._note(None)

    def response_ended(self, trailers: bytes) -> None:
        super().response_ended(trailers)
        self._note(None)

    def tunnel_ended(self, bytes_in: int, bytes_out: int) -> None:
        super().tunnel_ended(bytes_in, bytes_out)
        self._note(None)

    def abandon(self) -> None:
        had_ended = self.state is ENDED
        super().abandon()
        if not had_ended:
            self._note(CLIENT_LEFT)

    def _answer(self, error: ForwardingError) -> None:
        super()._answer(error)
        self._note(error)

    def _cut(self, error: ForwardingError) -> None:
        super()._cut(error)
        self._note(error)

    def _note(self, error: ForwardingError | None) -> None:
        """Add the entry; `error` is what ended the request, None for a normal end."""
        log, attempt, request = self._log, self._attempt, self._request
        was_logged, self._is_logged = self._is_logged, True
        if was_logged or not log.takes(self._status, error):
            return
        endpoint, connection, routed_at, sent_at, first_byte_at = (
            (attempt.assignment.state.endpoint, attempt.connection, attempt.assignment.routed_at, attempt.sent_at,
             attempt.first_byte_at)
            if attempt is not None
            else (None, NOT_CONNECTED, 0.0, 0.0, None)
        )  # fmt: skip
        log.add(Entry(
            self._proxy.now(), fault_of(error), self._status, request.method, request.target[:TARGET_LIMIT],
            request.id, excerpt(request.head), request.fields.is_http10, self._downstream.client,
            endpoint, self._attempts, connection, self._arrived, routed_at, sent_at, first_byte_at,
            self._bytes_in, self._bytes_out, attempt.load if attempt is not None else None,
        ))  # fmt: skip
