"""Admin request on a client connection: checks and refusals are answered here, other requests by the application.

Access is decided from the head. A body is buffered only for an admitted request, up to `BODY_LIMIT`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from balancer.control.admin.access import BODY_LIMIT, LIVE, PAGE, READY, Entrance
from balancer.errors import ConnectionCut, ForwardingError
from balancer.http.h1.client import Client
from balancer.http.h1.fields import found, lines_of, without
from balancer.http.h1.own_responses import ErrorAnswer
from balancer.http.h1.request_head import Request

if TYPE_CHECKING:
    from balancer.control.admin.application import AdminApplication

REFRAMED: Final = (b"connection", b"content-length", b"transfer-encoding", b"expect", b"upgrade")

_CONTENT_ENCODING: Final = lines_of(b"content-encoding")
_EXPECT: Final = lines_of(b"expect")

_NOT_FOUND: Final = b"404: Not Found"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class AdminPeer(Protocol):
    """The part of the client connection that an admin request uses."""

    transport: asyncio.Transport
    client: Client

    @property
    def arrived(self) -> tuple[float, float]: ...
    def detach(self) -> asyncio.Transport: ...
    def exchange_ended(self, stays: bool) -> None: ...
    def count_error(self, error: ForwardingError) -> None: ...
    def respond(self, response: bytes) -> int: ...
    def write_error(self, answer: ErrorAnswer) -> None: ...
    def abort(self) -> None: ...


class AdminExchange:
    """Exchange of a request whose path begins with /-/; it starts in its order on the connection, which closes after
    it.
    """

    def __init__(
        self, connection: AdminPeer, application: AdminApplication, request: Request, entrance: Entrance
    ) -> None:
        self._connection = connection
        self._application = application
        self._request = request
        self.head = request.raw
        self._path = request.target.partition(b"?")[0]
        is_read = request.method in (b"GET", b"HEAD")
        is_probe = is_read and (self._path == LIVE or self._path in READY)
        is_page = is_read and self._path == PAGE and not request.fields.has_body
        is_open = is_page and entrance is Entrance.LISTEN and application.token is not None
        is_admitted = is_open or (self._path != LIVE and application.admits(request.raw, entrance))
        self._is_probe = is_probe and not is_admitted
        self._is_allowed = is_admitted
        self._body = bytearray()
        self._is_up = False
        self._is_complete = not request.fields.has_body

    @property
    def _block(self) -> bytes:
        return self.head[self.head.find(b"\r\n") : -2]

    def start(self) -> None:
        self._is_up = True
        if self._is_probe:
            passes_health = self._path == LIVE or self._application.is_ready
            body = b'{"live": true}'
            if self._path != LIVE:
                reason = self._application.readiness.encode()
                body = b'{"healthy": %b, "reason": "%b"}' % (b"true" if passes_health else b"false", reason)
            self._answer(
                b"200 OK" if passes_health else b"503 Service Unavailable", b"application/json", body
            )
        elif not self._is_allowed:
            self._answer(b"404 Not Found", b"text/plain; charset=utf-8", _NOT_FOUND)
        elif any(found(_CONTENT_ENCODING, self._block)):
            problem = b'{"error": "Content-Encoding: an admin request\'s body must be plain JSON"}'
            self._answer(b"415 Unsupported Media Type", b"application/json", problem)
        else:
            if not self._is_complete and not self._body and any(found(_EXPECT, self._block)):
                self._connection.respond(_CONTINUE)
            self._hand_over()

    def request_body(self, data: bytes) -> None:
        if not self._is_allowed:
            return
        self._body += data
        if len(self._body) > BODY_LIMIT:
            self._body.clear()
            self._connection.abort()

    def request_ended(self, trailers: bytes) -> None:
        self._is_complete = True
        if self._is_allowed:
            self._hand_over()

    def pause_response(self) -> None:
        """Nothing to pause: the response is the application's, or a few hundred bytes."""

    def resume_response(self) -> None:
        """Nothing to resume: the response is the application's, or a few hundred bytes."""

    def abandon(self, error: ConnectionCut) -> None:
        """Nothing to cancel."""

    def reject(self, error: ForwardingError) -> None:
        """Answer a malformed or oversized body with an error and close."""
        self._connection.count_error(error)
        self._connection.write_error(ErrorAnswer(error))
        self._ended(0, 0, error)

    def check(self, now: float) -> None:
        """Nothing to check: the client connection's own timeouts apply."""

    def _answer(self, status: bytes, content_type: bytes, body: bytes) -> None:
        self._is_allowed = False  # the rest of the body is discarded
        head = b"HTTP/1.1 %b\r\n%bContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (
            status, self._application.date_line, content_type, len(body),
        )  # fmt: skip
        body = b"" if self._request.method == b"HEAD" else body
        self._ended(self._connection.respond(head + body), len(body))

    def _ended(self, status: int, size: int, error: ForwardingError | None = None) -> None:
        self._application.log_answer(self._request, self._connection, status, size, error)
        self._connection.exchange_ended(stays=False)

    def _hand_over(self) -> None:
        if self._is_up and self._is_complete:
            self._application.take_over(self._connection.detach(), self._message())

    def _message(self) -> bytes:
        """Return the request reframed as one message with `Connection: close`."""
        return b"%bContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
            without(REFRAMED, self.head[:-2]),
            len(self._body),
            bytes(self._body),
        )
