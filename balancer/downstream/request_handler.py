"""Handler of a request: it answers on its stream, or on its connection after the requests before it.

A forwarded request (`exchange/exchange.py`), an admin request (`control/admin/exchange.py`) and a refusal have the same
interface. A refusal waits for the requests before it like any other, and closes a connection of HTTP/1.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from balancer.cluster.cluster import Cluster
from balancer.errors import ConnectionCut, ForwardingError, RequestRejected
from balancer.exchange.responder import Responder
from balancer.http.h1.fields import host_of
from balancer.http.h1.request_fields import RequestFields
from balancer.http.h1.request_head import Request
from balancer.log.formats import NOT_CONNECTED, Entry, fault_of, grpc_status_of, requested
from balancer.routes.table import RouteTable

HOST_LIMIT = 256
"""Bytes of a refused request's Host that are logged."""

UNREAD: Final = Request(b"", b"", b"", b"", RequestFields(b""), b"")
"""In place of a request that could not be read."""


class RequestHandler(Protocol):
    """Handler of one request. `head` is the request head, as far as it has come."""

    @property
    def head(self) -> bytes: ...
    def start(self) -> None: ...
    def request_body(self, data: bytes) -> None: ...
    def request_ended(self, trailers: bytes) -> None: ...
    def pause_response(self) -> None: ...
    def resume_response(self) -> None: ...
    def abandon(self, error: ConnectionCut) -> None: ...
    def reject(self, error: ForwardingError) -> None: ...
    def check(self, now: float) -> None: ...


AdminExchanges = Callable[[Any, Request], RequestHandler]
"""Creates the handler of an admin request, for its connection or stream."""


class Refusal:
    """Handler that answers with an error."""

    def __init__(
        self,
        cluster: Cluster,
        downstream: Responder,
        error: RequestRejected,
        head: bytes,
        routes: RouteTable | None,
    ) -> None:
        self._cluster = cluster
        self._downstream = downstream
        self._error = error
        self.head = head  # possibly incomplete
        self._edits = None if routes is None else routes.edits
        self._arrived = downstream.arrived

    def start(self) -> None:
        is_head, edits, downstream = self.head.startswith(b"HEAD "), self._edits, self._downstream
        edit = None if edits is None else edits.of_own(UNREAD, downstream.client, self._cluster)
        downstream.count_error(self._error)
        downstream.write_error(self._error, b"", stays=False, is_head=is_head, edit=edit)
        self._log()
        self._downstream.exchange_ended(stays=False)

    def _log(self) -> None:
        """Add an access log entry with what an unvalidated head shows."""
        log = self._cluster.process.access_log
        if log is not None:
            method, target = requested(self.head)
            fault = fault_of(self._error, self._cluster.process.error_bodies)
            host = b"\r\nHost: %b\r\n" % host_of(self.head)[:HOST_LIMIT]
            log.add(Entry(
                self._cluster.now(), fault, 0, method, target, b"", host,
                b" HTTP/1.0\r" in self.head, self._downstream.client, None, 0, NOT_CONNECTED, self._arrived,
                0.0, 0.0, None, 0, 0, grpc_status=grpc_status_of(self._downstream.call),
                extra=None if log.chosen is None else log.chosen.extra(self.head, b""),
            ))  # fmt: skip

    def request_body(self, data: bytes) -> None:
        """Ignored: the body of a refused request is dropped."""

    def request_ended(self, trailers: bytes) -> None:
        """Ignored: the body of a refused request is dropped."""

    def pause_response(self) -> None:
        """Ignored: an error response is a few hundred bytes."""

    def resume_response(self) -> None:
        """Ignored: an error response is a few hundred bytes."""

    def abandon(self, error: ConnectionCut) -> None:
        """Ignored: there is nothing to cancel."""

    def reject(self, error: ForwardingError) -> None:
        """Ignored: the request is rejected already."""

    def check(self, now: float) -> None:
        """Ignored: a refusal has no timeout."""
