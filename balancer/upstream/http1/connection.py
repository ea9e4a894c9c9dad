"""HTTP/1.1 upstream connection: sends one request at a time and parses its response into events.

A response's end is reported only after the whole read has been parsed. Bytes beyond the end therefore never reach the
next response: they make the connection not reusable before it can be leased again (RFC 9112 § 6.3).

llhttp validates every byte of a head, except of one that is equal to the last. A response that is complete in one read
and of known length is fed to it in one piece. Other bodies are parsed by `http/h1/body.py`, and the next response then
gets a new llhttp parser.

It implements `UpstreamRequest`, and `request.py` describes the events. Once a response has ended, `is_reusable` says
whether another request may be sent.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

from balancer.config.schema.pool import UNLIMITED_REQUESTS
from balancer.errors import ConnectionBroken, MalformedBody, MalformedResponse, UpstreamError
from balancer.http.h1.body import Body, body_of
from balancer.http.h1.chunks import chunk, last_chunk
from balancer.http.h1.fields import END_OF_HEAD, Framing
from balancer.http.h1.response_head import (
    INTERIM_LIMIT,
    Response,
    ResponseHeads,
    keep_alive_timeout,
)
from balancer.upstream.bounded_reader import LONGEST_READ, BoundedReader, bounded, unbounded
from balancer.upstream.connection_counts import ERROR, US, WORKER, ended_by
from balancer.upstream.dial.phases import NOTHING
from balancer.upstream.request import RequestBody, ResponseSink, UpstreamRequest

LENGTH: Final = Framing.LENGTH
UNTIL_CLOSE: Final = Framing.UNTIL_CLOSE

NO_KEEP_ALIVE_YET: Final = -1.0
"""Value of `announced` before the first response."""


class ConnectionOwner(Protocol):
    """Owner of a connection, usually its pool: takes it back when idle and is notified when it closes."""

    def give_back(self, upstream: UpstreamConnection) -> None: ...
    def connection_closed(self, upstream: UpstreamConnection) -> None: ...


class UpstreamConnection(UpstreamRequest, asyncio.Protocol):
    """HTTP/1.1 connection to a worker, which serves one request at a time.

    `is_reusable`: whether another request may follow, once a response has ended. `closed_by`: which side closed it,
    valid once `is_closed`. `has_died`: it closed with a request in flight and before any byte of the response.
    `announced`: keep-alive timeout in seconds that the worker states, 0: none.

    Set by the owner: `is_counted`; `opened_at`, `idle_since` and `retire_at`, in seconds; `requests_left` of those
    `granted`; `reused_after`, its idle time in seconds when last leased from `IdleConnections`, and
    `reused_idle_since`, the start of that idle time.
    """

    __slots__ = (
        "_body",
        "_bounded",
        "_has_odd_response",
        "_has_sent_interim",
        "_head",
        "_heads",
        "_interims",
        "_is_chunked",
        "_is_head_request",
        "_known",
        "_owner",
        "_parser",
        "_poll",
        "_reading_paused",
        "_response",
        "_rest",
        "_sink",
        "_valid",
        "announced",
        "closed_by",
        "granted",
        "has_died",
        "is_counted",
        "is_reusable",
        "opened_at",
        "requests_left",
        "retire_at",
        "reused_after",
        "reused_idle_since",
        "transport",
        "write",
    )

    transport: asyncio.Transport
    write: Callable[[bytes], None]  # the transport's own, which saves a call

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._sink: ResponseSink | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._known = b""  # the last head that came with its whole body, and the result
        self._valid: Response | None = None
        self._head = b""  # incomplete head
        self._heads = ResponseHeads()
        self._response: Response | None = None  # its head is complete, its body is not
        self._body: Body | None = None  # parser of that body
        self._rest = b""  # bytes behind the head being reported
        self._is_head_request = self._has_odd_response = self._reading_paused = False
        self._is_chunked = False  # the body of the request
        self._interims = 0  # responses to this request before its final one
        self._has_sent_interim = False  # by an interim response: then `has_died` stays false
        self._poll: Callable[[float], list[tuple[int, int]]] | None = None  # created on first use
        self.is_reusable = True
        self.is_closed = self.is_counted = False
        self.read_size = 0
        self._bounded: BoundedReader | None = None
        self.opened_at = self.idle_since = 0.0
        self.phases = NOTHING
        self.closed_by = US
        self.has_died = False
        self.announced = NO_KEEP_ALIVE_YET
        self.retire_at = float("inf")
        self.granted: int = UNLIMITED_REQUESTS
        self.requests_left: int = UNLIMITED_REQUESTS
        self.reused_after = self.reused_idle_since = 0.0

    # --- towards the worker

    def send(self, head: bytes, sink: ResponseSink, method: bytes, body: RequestBody | None = None) -> None:
        self._sink = sink
        self._is_head_request = method == b"HEAD"
        self._has_odd_response = method in (b"HEAD", b"CONNECT")
        self.is_reusable = False  # until the response has ended
        self._interims = 0
        if body is None:
            self.write(head)
            return
        self._is_chunked = body.is_chunked
        end = b""
        if body.is_chunked:
            if body.size:
                head, end = head + b"%x\r\n" % body.size, b"\r\n"
            if body.trailers is not None:
                end += last_chunk(body.trailers)
        self.write(body.between(head, end))

    def write_body(self, data: bytes) -> None:
        self.write(chunk(data) if self._is_chunked else data)

    def end_body(self, trailers: bytes) -> None:
        if self._is_chunked:
            self.write(last_chunk(trailers))

    def hand_over(self, sink: ResponseSink) -> None:
        self._sink = sink

    def release(self) -> None:
        """End the request and give the connection back to its owner, which checks whether it can be reused."""
        if self._reading_paused:
            self.resume_reading()
        self._owner.give_back(self)

    def close(self) -> None:
        """Close the connection at once; its sink gets no further events."""
        self._sink = None
        if not self.is_closed:
            self._mark_closed()
            self.transport.abort()

    def detach(self) -> bytes:
        """Hand the connection over to a tunnel; returns the bytes that followed the head that began it.

        Must be called by the sink while that head is reported. The connection counts as leased until `connection_lost`.
        """
        self._sink = None
        return self._rest

    def is_quiet(self) -> bool:
        """Whether the kernel has nothing to read for this connection: no close and no unsolicited bytes."""
        if self._poll is None:
            if not hasattr(select, "poll"):  # Windows
                return True
            waiting = select.poll()
            waiting.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
            self._poll = waiting.poll
        return not self._poll(0)

    @property
    def unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        if not self._reading_paused and not self.is_closed:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._reading_paused and not self.is_closed:
            self._reading_paused = False
            self.transport.resume_reading()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.write = self.transport.write

    def data_received(self, data: bytes) -> None:
        if self._sink is None:
            self.closed_by = ERROR
            self.close()  # unsolicited bytes
            return
        try:
            if self._body is None:
                self._read_head(data)
            else:
                self._read_body(data)
        except MalformedResponse as error:
            self._fail(error)
        except MalformedBody as error:
            self._fail(MalformedResponse(str(error)))

    def eof_received(self) -> None:
        """Handle a FIN, which may end a body of unknown length; a reset, reported by `connection_lost`, never does."""
        response = self._response
        is_end = response is not None and response.framing is UNTIL_CLOSE
        self._lost("the worker closed the connection", WORKER, is_end=is_end)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_closed:
            self._lost(str(error) if error else "the connection closed", ended_by(error))

    def pause_writing(self) -> None:
        if self._sink is not None:
            self._sink.upstream_paused()

    def resume_writing(self) -> None:
        if self._sink is not None:
            self._sink.upstream_resumed()

    def set_read_size(self, size: int) -> None:
        self.read_size = size
        if size >= LONGEST_READ:
            self._bounded = None
            unbounded(self.transport, self)
            return
        if self._bounded is None:
            self._bounded = bounded(self.transport, self)
        self._bounded.size = size

    # --- parsing responses

    def _read_head(self, data: bytes) -> None:
        valid, at = self._valid, len(self._known)
        is_usual = not (self._head or self._has_odd_response)
        if is_usual and valid is not None and at + valid.length == len(data) and data.startswith(self._known):
            self._end_whole(valid, data[at:])
            return
        while data:  # once, unless there are interim responses
            head = self._head + data if self._head else data
            end = head.find(END_OF_HEAD) + 4
            if end < 4:
                self._heads.bound(head)
                self._validate(data)
                self._head = head
                return
            size = len(head)
            response: Response | None = None
            if head is data:  # the common case: one complete response and nothing else
                response = self._heads.incoming(head[: end - 2])
                is_whole = response.framing is LENGTH and end + response.length == size
                if is_whole and not (self._has_odd_response or response.is_bodiless):
                    self._validate(data)
                    self._known, self._valid = data[:end], response
                    self._end_whole(response, data[end:])
                    return
            self._head = b""
            self._validate(data[: len(data) - (size - end)] if end < size else data)
            data = self._start(response or self._heads.incoming(head[: end - 2]), head[end:])

    def _end_whole(self, response: Response, body: bytes) -> None:
        sink, self._sink = self._sink, None
        self.is_reusable = response.keep_alive
        if sink is not None:
            sink.response_whole(response, body)

    def _validate(self, data: bytes) -> None:
        """Validate bytes of a head with llhttp. Raises `MalformedResponse`."""
        parser = self._parser
        if parser is None:
            self._parser = parser = httptools.HttpResponseParser(self)
            if self.announced == NO_KEEP_ALIVE_YET:
                self.announced = keep_alive_timeout(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._parser = None
        except httptools.HttpParserError as error:
            raise MalformedResponse(str(error)) from None

    def _start(self, response: Response, rest: bytes) -> bytes:
        """Report a final or interim head that is followed by `rest`.

        Returns the bytes still to be parsed: the next head, behind an interim one. Raises `MalformedResponse`.
        """
        sink = self._sink
        self._rest = rest
        if response.status < 200:
            if response.status == 101 and (sink is None or not sink.may_switch(response)):
                raise MalformedResponse("101 for a request without Upgrade")
            self._has_sent_interim = True
            self._interims += 1
            if self._interims > INTERIM_LIMIT:
                raise MalformedResponse(f"more than {INTERIM_LIMIT} interim responses")
            if sink is not None:
                sink.response_started(response)
            self._rest = b""
            return rest if self._sink is not None else b""
        self._response = response
        if sink is not None:
            sink.response_started(response)
        self._rest = b""
        if self._sink is None:  # closed or detached by the sink
            return b""
        if self._is_head_request or response.is_bodiless:
            if self._is_head_request:
                self._parser = None  # it would expect a body
            self._end(rest, b"")
            return b""
        self._parser = None
        self._body = body_of(response.framing, response.length)
        self._read_body(rest)
        return b""

    def _read_body(self, data: bytes) -> None:
        body, sink = self._body, self._sink
        if body is None or sink is None:
            return
        piece = body.feed(data)
        if body.is_canonical:
            sink.response_chunks(piece, data)
            return
        if piece:
            sink.response_body(piece)
        if self._sink is None:
            return
        if body.is_ended:
            self._end(body.rest, body.trailers)
            return
        sink.response_paused()

    def _end(self, rest: bytes, trailers: bytes) -> None:
        """Report the end of the response. Bytes behind it only make the connection not reusable."""
        sink, self._sink = self._sink, None
        response, self._response = self._response, None
        self._body = None
        self.is_reusable = response is not None and response.keep_alive and not (rest or self.is_closed)
        if sink is not None:
            sink.response_ended(trailers)

    # --- closing

    def _lost(self, detail: str, by: str, is_end: bool = False) -> None:
        sink, self._sink = self._sink, None
        self.closed_by = by
        is_unheard = self._response is None and not (self._head or self._has_sent_interim)
        self.has_died = sink is not None and is_unheard
        self._mark_closed()
        self.transport.abort()
        if sink is None:
            return
        if is_end:
            sink.response_ended(b"")
        else:
            sink.response_failed(ConnectionBroken(detail))

    def _fail(self, error: UpstreamError) -> None:
        sink = self._sink
        self.closed_by = ERROR
        self.close()
        if sink is not None:
            sink.response_failed(error)

    def _mark_closed(self) -> None:
        self.is_closed = True
        self.is_reusable = False
        self._owner.connection_closed(self)
