"""An exchange that leaves an entry in the access log: made instead of the plain one while there is a log.

Rule of this file: it watches and changes nothing. Each way in which a request can end passes one of these methods, and
leaves one entry. Without a log nobody pays for it, not even with a question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from balancer.errors import CLIENT_LEFT, ForwardingError
from balancer.exchange import Exchange
from balancer.log_lines import NEW, NOT_CONNECTED, REUSED, TARGET_LIMIT, Entry, excerpt, fault_of
from balancer.request_head import Request
from balancer.response_head import Response
from balancer.upstream import Upstream
from policies.facts import OutcomeKind
from policies.router import Assignment

if TYPE_CHECKING:
    from balancer.access_log import AccessLog
    from balancer.downstream import Downstream
    from balancer.unit import Unit


class LoggedExchange(Exchange):
    """A request and its response, and their line in `log`."""

    def __init__(self, unit: Unit, downstream: Downstream, request: Request, log: AccessLog) -> None:
        super().__init__(unit, downstream, request)
        self._log = log
        self._arrived = downstream.head_at, unit.now()
        self._settled: Assignment | None = None  # of the last attempt; none while it waits for one
        self._connection = NOT_CONNECTED
        self._is_logged = False

    # --- what is noted on the way

    def attempt(self) -> None:
        self._settled = None
        self._connection = NOT_CONNECTED
        super().attempt()

    def _send(self, upstream: Upstream) -> None:
        self._connection = REUSED if upstream.idle_since else NEW
        super()._send(upstream)

    def _settle(self, kind: OutcomeKind, now: float) -> None:
        if self._assignment is not None:
            self._settled = self._assignment
        super()._settle(kind, now)

    # --- ends

    def response_whole(self, response: Response, body: bytes) -> None:
        super().response_whole(response, body)
        self._note(None)

    def response_ended(self, trailers: bytes) -> None:
        super().response_ended(trailers)
        self._note(None)

    def tunnel_ended(self, bytes_in: int, bytes_out: int) -> None:
        super().tunnel_ended(bytes_in, bytes_out)
        self._note(None)

    def abandon(self) -> None:
        was_finished = self.is_finished
        super().abandon()
        if not was_finished:
            self._note(CLIENT_LEFT)

    def _answer(self, error: ForwardingError) -> None:
        super()._answer(error)
        self._note(error)

    def _cut(self, error: ForwardingError) -> None:
        super()._cut(error)
        self._note(error)

    def _note(self, error: ForwardingError | None) -> None:
        """The entry; `error` is what ended the request, if it did not end by itself."""
        log, settled, request = self._log, self._settled, self._request
        was_logged, self._is_logged = self._is_logged, True
        if was_logged or not log.takes(self._status, error):
            return
        log.add(Entry(
            self._unit.now(), fault_of(error), self._status, request.method, request.target[:TARGET_LIMIT],
            request.id, excerpt(request.head), request.fields.is_http10, self._downstream.client,
            settled.state.endpoint if settled is not None else None, self._attempts + (settled is not None),
            self._connection, self._arrived, settled.routed_at if settled is not None else 0.0, self._sent_at,
            self._first_byte_at, self._bytes_in, self._bytes_out,
        ))  # fmt: skip
