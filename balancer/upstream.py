"""One connection to a worker: bytes to and from it, as response events.

Rule of this file: a connection serves one request at a time, and says that a response has ended only after
the whole read has been parsed. Bytes beyond the end of a response therefore never reach the next one: they
mark the connection as not reusable before anybody can lease it again (RFC 9112 § 6.3).

Events go to a `ResponseSink`; the exchange is one, the load generator's requests are another:

    upstream.send(head, sink, method)   begins a request; upstream.write(data) adds framed bytes of its body
    sink.response_started(status, line, block)   for each head, 1xx included: its status line and its block of
                                        fields, as the bytes that came (`heads.py` says what a block is)
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
from typing import Protocol, cast

import httptools

from balancer.errors import ConnectFailed, ConnectionBroken, ConnectTimeout, MalformedResponse, UpstreamError
from balancer.heads import END_OF_HEAD, field


class ResponseSink(Protocol):
    """Who hears what comes back."""

    def response_started(self, status: int, line: bytes, block: bytes) -> None: ...
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


class Upstream(asyncio.Protocol):
    """One connection to a worker. `served` counts responses; `idle_since` is the owner's, in seconds."""

    __slots__ = (
        "_block",
        "_complete",
        "_head",
        "_is_head_request",
        "_keep_alive",
        "_owner",
        "_parser",
        "_reading_paused",
        "_sink",
        "_started",
        "_surplus",
        "idle_since",
        "is_closed",
        "opened_at",
        "served",
        "transport",
        "write",
    )

    transport: asyncio.Transport
    write: Callable[[bytes], None]
    """Add bytes of the request's body, already framed: the transport's own method, to save a call."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._sink: ResponseSink | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._head = b""  # what has come since the last head ended, until the next one does
        self._block = b""
        self._started = self._complete = self._surplus = False
        self._is_head_request = self._reading_paused = False
        self._keep_alive = True  # until the first request says otherwise
        self.is_closed = False
        self.opened_at = self.idle_since = 0.0
        self.served = 0

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow on this connection."""
        return self._keep_alive and not self._surplus and not self.is_closed

    # --- towards the worker

    def send(self, head: bytes, sink: ResponseSink, method: bytes) -> None:
        """Begin a request; its response goes to `sink`."""
        self._sink = sink
        self._is_head_request = method == b"HEAD"
        self._started = self._complete = self._keep_alive = False
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
        if not self._started:
            self._head = self._head + data if self._head else data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._parsing_failed(error)
        except httptools.HttpParserUpgrade:
            self._fail(MalformedResponse("101 for a request without Upgrade"))
        else:
            if self._complete:
                self._end()
            elif self._sink is not None:
                self._sink.response_paused()
            else:
                self._fail(MalformedResponse("bytes that answer no request"))

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

    # --- llhttp

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True  # of a further response, which nobody asked for

    def on_headers_complete(self) -> None:
        sink = self._sink
        if sink is None or self._started:
            self._surplus = True
            return
        status = self._parser.get_status_code()
        head = self._head
        line_end, end = head.find(b"\r\n"), head.find(END_OF_HEAD)
        self._started = status >= 200
        self._head = b"" if self._started else head[end + 4 :]
        self._block = head[line_end : end + 2]
        sink.response_started(status, head[:line_end], self._block)
        if self._is_head_request and self._started:
            # llhttp cannot be told that HEAD has no body: it will not find this message's end, so we say it.
            self._keep_alive = self._parser.should_keep_alive()
            self._complete = True

    def on_body(self, data: bytes) -> None:
        if self._complete:
            self._surplus = True
        elif self._sink is not None:
            self._sink.response_body(data)

    def on_message_complete(self) -> None:
        if self._started and not self._complete:
            self._keep_alive = self._parser.should_keep_alive()
            self._complete = True

    # --- ends

    def _end(self) -> None:
        sink, self._sink = self._sink, None
        if self._is_head_request:
            self._parser = httptools.HttpResponseParser(self)
        self.served += 1
        if sink is not None:
            sink.response_ended()

    def _parsing_failed(self, error: httptools.HttpParserError) -> None:
        """A response that ended before the bad bytes is whole; only the connection is spoiled."""
        if isinstance(error, httptools.HttpParserCallbackError):  # a fault of ours, not of the worker's bytes
            self._fail(MalformedResponse("internal error while relaying"))
            raise error
        if self._complete:
            self._surplus = True
            self._end()
        else:
            self._fail(MalformedResponse(str(error)))

    def _worker_closed(self, detail: str) -> None:
        sink, self._sink = self._sink, None
        self._mark_closed()
        self.transport.abort()
        if sink is None:
            return
        if self._started and self._ends_at_close():
            sink.response_ended()
        else:
            sink.response_failed(ConnectionBroken(detail))

    def _ends_at_close(self) -> bool:
        """RFC 9112 § 6.3 rule 8: neither chunked nor with a length."""
        return (
            field(self._block, b"content-length") is None and field(self._block, b"transfer-encoding") is None
        )

    def _fail(self, error: UpstreamError) -> None:
        sink = self._sink
        self.close()
        if sink is not None:
            sink.response_failed(error)

    def _mark_closed(self) -> None:
        self.is_closed = True
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
