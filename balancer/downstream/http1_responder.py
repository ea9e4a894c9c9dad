"""Responses to a client in HTTP/1.1: heads, chunks, one write for what a read from the worker has brought, and what the
client has not taken of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from balancer.cluster.cluster import Cluster
from balancer.errors import ClientStalled
from balancer.exchange.responder import RequestHandler, Responder
from balancer.http.h1.chunks import chunk, last_chunk
from balancer.http.h1.fields import Framing
from balancer.http.h1.request_head import Request
from balancer.http.h1.response_head import Response, outgoing_head
from balancer.upstream.request import LONGEST, SHORTEST, next_size

LENGTH: Final = Framing.LENGTH
CHUNKED: Final = Framing.CHUNKED
UNTIL_CLOSE: Final = Framing.UNTIL_CLOSE


class Http1Responder(Responder):
    """The responder that each `Http1Connection` is; abstract."""

    write: Callable[[bytes], None]
    """Write to the client: the transport's own method, to save a call."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, cluster.now())
        self.head_at = 0.0  # when the first byte of a head came, if the head came in pieces
        self.came_at = 0.0  # when the pipelined bytes came that are being parsed, else 0
        self._answering: RequestHandler | None = None
        self._unsent = 0  # bytes that the client had not taken at the last sweep
        self._ignores_input = False  # further input from the client is ignored
        self._linger_until: float | None = None
        self._response_head = b""  # of the response that has begun, until it is sent
        self._framing = LENGTH  # of the body of that response

    @property
    def answering(self) -> int:
        return int(self._answering is not None)

    @property
    def arrived(self) -> tuple[float, float]:
        return self.head_at, self.came_at or self._cluster.now()

    @property
    def first_read_size(self) -> int:
        return self.client.read_size

    def respond_whole(
        self, request: Request, response: Response, fields: bytes, body: bytes, is_complete: bool
    ) -> bool:
        stays = self.begin_response(request, response, fields, is_complete)
        self.write(self._response_head + body)
        self._response_head = b""
        return stays

    def begin_response(self, request: Request, response: Response, fields: bytes, is_complete: bool) -> bool:
        parsed, process = request.fields, self._process
        may_stay = parsed.keep_alive and is_complete and process.keeps_alive
        self._response_head, self._framing = outgoing_head(
            response, fields, request.method == b"HEAD", parsed.is_http10, may_stay, process.date_line
        )
        return may_stay and self._framing is not UNTIL_CLOSE

    def send_part(self, pieces: list[bytes]) -> int:
        self._write_body(pieces, b"")
        return self._next_size()

    def send_chunks(self, framed: bytes) -> int:
        if self._framing is not CHUNKED:
            return 0
        head = self._response_head
        if head:
            self._response_head = b""
            framed = head + framed
        self.write(framed)
        size = self.client.read_size
        if size < LONGEST or len(framed) >= SHORTEST:
            return self._next_size()
        if self.is_write_paused:  # those before had to wait, too
            self.client.read_size = size = SHORTEST
        return size

    def _next_size(self) -> int:
        size = next_size(self.client.read_size, self.transport.get_write_buffer_size())
        self.client.read_size = size
        return size

    def end_response(self, pieces: list[bytes], trailers: bytes) -> None:
        self._write_body(pieces, last_chunk(trailers) if self._framing is CHUNKED else b"")

    def cut(self, pieces: list[bytes]) -> None:
        """End by a FIN short of the length or the last chunk; by a reset where the FIN would be the regular end."""
        if self._framing is UNTIL_CLOSE:
            self.abort()
            return
        self._write_body(pieces, b"")
        self._ignores_input = True  # closed with input unread, the connection would be reset
        self.exchange_ended(False)

    def _write_body(self, pieces: list[bytes], end: bytes) -> None:
        """Write pieces of the body, framed, behind the head if that has not been sent, in one write."""
        if self._framing is CHUNKED:
            pieces = [chunk(piece) for piece in pieces]
        head, self._response_head = self._response_head, b""
        self.write(b"".join([part for part in [head, *pieces, end] if part]))  # a single one is not copied

    def send_interim(self, response: Response, fields: bytes) -> None:
        self.write(response.line + fields + b"\r\n")

    def begin_tunnel(self, response: Response, fields: bytes, early: bytes) -> None:
        self.write(response.line + fields + b"\r\n" + early)

    def hand_over(self, handler: RequestHandler) -> None:
        self._answering = handler

    def respond(self, response: bytes) -> int:
        self.write(response)
        return int(response[9:12])

    # --- what the client has not taken

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._unsent = -1  # the next sweep starts to measure, whatever an earlier pause left here
        if self._answering is not None:
            self._answering.pause_response()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self.uncharge()
        if self._answering is not None:
            self._answering.resume_response()
            return
        self.idle_since = self._cluster.now()  # the client has taken the last response only now
        self._taken()

    @abstractmethod
    def _taken(self) -> None:
        """Continue: the client has taken all responses so far."""

    def _check_linger(self, now: float, quiet: float, until: float) -> None:
        """Enforce the linger timeout, which starts when the response has been sent; a stalled reader is reset."""
        if self.transport.get_write_buffer_size():
            self._linger_until = now + self._cluster.timeouts.linger
            self._check_reader(now, quiet)
        elif now > until:
            self.transport.abort()

    def _check_reader(self, now: float, quiet: float) -> None:
        """Abort a client that has read nothing for the idle timeout; a slow reader is served at its pace."""
        unsent = self.unsent
        if unsent != self._unsent:
            self._unsent, self.idle_since = unsent, now
            self.uncharge(unsent)
        elif quiet > self._cluster.timeouts.body_idle:
            self.abort(ClientStalled(self._cluster.timeouts.body_idle))
