"""One connection to a worker: bytes to and from it, as response events.

Rule of this file: a connection serves one request at a time, and says that a response has ended only after
the whole read has been parsed. Bytes beyond the end of a response therefore never reach the next one: they
mark the connection as not reusable before anybody can lease it again (RFC 9112 § 6.3).

llhttp writes down what it finds in a read, in order, and it is told on afterwards: BEGIN, HEAD, the bytes of the
body, END. It calls methods of builtins to do so. A Python function called from C costs a frame each time, three
times what noting it does, and most responses can then be told in one go.

Events go to a `ResponseSink`; the exchange is one, the load generator's requests are another:

    upstream.send(head, sink, method)   begins a request; upstream.write(data) adds framed bytes of its body
    sink.response_whole(response, body)  the usual response, with a body and all of it in one read: instead of
                                        started, body, ended
    sink.response_started(response)     for each head, 1xx included
    sink.response_body(data)            bytes of the body without their framing, never empty
    sink.response_paused()              all that was read has been told, and there is more to come
    sink.response_ended()               whole and clean; ask `upstream.is_reusable` before leasing it again
    sink.response_failed(error)         instead of response_ended: an `UpstreamError`
    sink.upstream_paused() / upstream_resumed()      its write buffer is full / has drained
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

import httptools

from balancer.errors import ConnectFailed, ConnectionBroken, ConnectTimeout, MalformedResponse, UpstreamError
from balancer.heads import END_OF_HEAD, Framing, incoming_response
from balancer.heads import Response as Response  # for those who implement a sink

_BEGIN, _HEAD, _END = b"begin", b"head", b"end"
"""Marks between the bytes of bodies, told from them by identity."""


class ResponseSink(Protocol):
    """Who hears what comes back."""

    def response_whole(self, response: Response, body: bytes) -> None: ...
    def response_started(self, response: Response) -> None: ...
    def response_body(self, data: bytes) -> None: ...
    def response_paused(self) -> None: ...
    def response_ended(self) -> None: ...
    def response_failed(self, error: UpstreamError) -> None: ...
    def upstream_paused(self) -> None: ...
    def upstream_resumed(self) -> None: ...


class ConnectionOwner(Protocol):
    """Who keeps the connection while it serves nobody; told the moment it cannot be used any more."""

    def give_back(self, upstream: Upstream) -> None: ...
    def connection_closed(self, upstream: Upstream) -> None: ...


class Notes:
    """What llhttp calls, and nothing else: it writes down what it finds."""

    __slots__ = ("on_body", "on_headers_complete", "on_message_begin", "on_message_complete")

    def __init__(self, events: list[bytes]) -> None:
        self.on_message_begin = partial(events.append, _BEGIN)
        self.on_headers_complete = partial(events.append, _HEAD)
        self.on_body = events.append
        self.on_message_complete = partial(events.append, _END)


class Upstream(asyncio.Protocol):
    """One connection to a worker. `is_reusable`: once a response has ended, another request may follow;
    `idle_since` is the owner's, in seconds."""

    __slots__ = (
        "_events",
        "_feed",
        "_head",
        "_is_complete",
        "_is_head_request",
        "_owner",
        "_reading_paused",
        "_response",
        "_sink",
        "idle_since",
        "is_closed",
        "is_reusable",
        "opened_at",
        "transport",
        "write",
    )

    transport: asyncio.Transport
    write: Callable[[bytes], None]
    """Add bytes of the request's body, already framed: the transport's own method, to save a call."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._sink: ResponseSink | None = None
        self._events: list[bytes] = []
        self._feed = httptools.HttpResponseParser(Notes(self._events)).feed_data
        self._head = b""  # what has come since the last head ended, until the next one does
        self._response: Response | None = None  # the one that has started
        self._is_complete = False  # and has ended
        self._is_head_request = self._reading_paused = False
        self.is_reusable = True
        self.is_closed = False
        self.opened_at = self.idle_since = 0.0

    # --- towards the worker

    def send(self, head: bytes, sink: ResponseSink, method: bytes) -> None:
        """Begin a request; its response goes to `sink`."""
        self._sink = sink
        self._is_head_request = method == b"HEAD"
        self.is_reusable = False  # until its response has ended
        self.write(head)

    def release(self) -> None:
        """The request is over: back to the owner, who looks whether it can serve again."""
        if self._reading_paused:
            self.resume_reading()
        self._owner.give_back(self)

    def close(self) -> None:
        """Give the connection up; nobody hears of it any more."""
        self._sink = None
        if not self.is_closed:
            self._mark_closed()
            self.transport.abort()

    def is_quiet(self) -> bool:
        """Whether the kernel holds nothing unread for us: neither a close nor bytes nobody asked for."""
        if not hasattr(select, "poll"):  # Windows
            return True
        waiting = select.poll()
        waiting.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not waiting.poll(0)

    def pause_reading(self) -> None:
        """Let the worker wait: whoever reads the response cannot keep up."""
        if not self._reading_paused and not self.is_closed:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if self._reading_paused and not self.is_closed:
            self._reading_paused = False
            self.transport.resume_reading()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.write = self.transport.write

    def data_received(self, data: bytes) -> None:
        events = self._events
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._tell(data, str(error))
        except httptools.HttpParserUpgrade:
            self._tell(data, "101 for a request without Upgrade")
        else:
            if len(events) == 4 and events[0] is _BEGIN and events[3] is _END and not self._is_head_request:
                self._tell_whole(data)
            else:
                self._tell(data)

    def eof_received(self) -> None:
        self._worker_closed("the worker closed the connection")

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_closed:
            self._worker_closed(str(error) if error else "the connection closed")

    def pause_writing(self) -> None:
        if self._sink is not None:
            self._sink.upstream_paused()

    def resume_writing(self) -> None:
        if self._sink is not None:
            self._sink.upstream_resumed()

    # --- what llhttp has found

    def _tell_whole(self, data: bytes) -> None:
        """The usual read: one response with a body in one piece, and nothing else."""
        sink, body = self._sink, self._events[2]
        try:
            response = incoming_response(data[: data.find(END_OF_HEAD) + 2])
        except MalformedResponse as error:
            self._fail(error)
            return
        self._events.clear()
        self._sink = None
        self.is_reusable = response.keep_alive
        if sink is not None:
            sink.response_whole(response, body)
        else:
            self.close()  # these bytes answer no request

    def _tell(self, data: bytes, fault: str = "") -> None:
        """Any other read, event by event; `fault` says what llhttp stumbled over behind them."""
        events = self._events.copy()
        self._events.clear()
        is_spoiled = bool(fault)
        if self._response is None:
            self._head += data
        for event in events:
            if self._sink is None:  # given up on the way
                break
            if self._is_complete:
                is_spoiled = True
            elif event is _HEAD:
                self._start()
            elif event is _END:
                self._is_complete = self._response is not None
            elif event is not _BEGIN:
                self._sink.response_body(event)
        if self._is_complete:
            self._end(is_spoiled)
        elif fault or self._sink is None:
            self._fail(MalformedResponse(fault or "bytes that answer no request"))
        else:
            self._sink.response_paused()

    def _start(self) -> None:
        """A head has come, the last one or an interim one."""
        end = self._head.find(END_OF_HEAD)
        try:
            response = incoming_response(self._head[: end + 2])
        except MalformedResponse as error:
            self._fail(error)
            return
        self._head = self._head[end + 4 :]
        if response.status >= 200:
            self._response = response
            self._head = b""
            # llhttp cannot be told that HEAD has no body: it will not find this message's end, so we say it.
            self._is_complete = self._is_head_request
        if self._sink is not None:
            self._sink.response_started(response)

    def _end(self, is_spoiled: bool) -> None:
        """The response is whole, even where bad bytes follow: they spoil only the connection."""
        sink, self._sink = self._sink, None
        response, self._response = self._response, None
        self._is_complete = False
        if self._is_head_request:
            self._feed = httptools.HttpResponseParser(Notes(self._events)).feed_data
        self.is_reusable = response is not None and response.keep_alive and not (is_spoiled or self.is_closed)
        if sink is not None:
            sink.response_ended()

    # --- ends

    def _worker_closed(self, detail: str) -> None:
        sink, self._sink = self._sink, None
        self._mark_closed()
        self.transport.abort()
        if sink is None:
            return
        if self._response is not None and self._response.framing is Framing.UNTIL_CLOSE:
            sink.response_ended()
        else:
            sink.response_failed(ConnectionBroken(detail))

    def _fail(self, error: UpstreamError) -> None:
        sink = self._sink
        self.close()
        if sink is not None:
            sink.response_failed(error)

    def _mark_closed(self) -> None:
        self.is_closed = True
        self.is_reusable = False
        self._owner.connection_closed(self)


async def connect(owner: ConnectionOwner, host: str, port: int, timeout: float) -> Upstream:
    """Open a connection within `timeout` seconds; raises `ConnectFailed` or `ConnectTimeout`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, upstream = await loop.create_connection(lambda: Upstream(owner), host, port)
    except TimeoutError:
        raise ConnectTimeout(f"no connection within {timeout:g} s") from None
    except OSError as error:
        raise ConnectFailed(error.strerror or str(error)) from None
    return upstream
