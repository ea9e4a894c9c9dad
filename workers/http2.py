"""HTTP/2 server in front of the worker's application: frames by the library ngh2, one `WorkerStream` per request.

A stream is presented to the application as an HTTP/1.1 connection with one request, so slots, queues, faults and bodies
are the same in both versions. Connections end as HTTP/2 requires. GOAWAY names the last stream that is answered; later
ones are ignored, and may be sent again (RFC 9113 § 6.8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any, cast

import httptools
import ngh2

from workers.connection_closing import reset
from workers.settings import Settings

Fields = Iterable[tuple[bytes, bytes]]
Buffer = bytes | bytearray | memoryview

MAX_BUFFERED_BYTES = 1 << 17
"""Bytes of a response that may wait for the client's window before the application is paused."""

OF_CONNECTIONS = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"expect"))
"""Connection-specific fields, which HTTP/2 does not allow (RFC 9113 § 8.2.2), and `expect`, as 100-continue is not
supported."""


def request_bytes(fields: Fields, is_whole: bool) -> tuple[bytes, bool]:
    """Return the request's header in HTTP/1.1 format, and whether a chunked body follows.

    Raises KeyError without method or path.
    """
    listed = list(fields)
    pseudo = {name: value for name, value in listed if name.startswith(b":")}
    lines = [
        b"%b: %b" % (name, value)
        for name, value in listed
        if not name.startswith(b":") and name not in OF_CONNECTIONS
    ]
    if b":authority" in pseudo:
        lines.insert(0, b"host: " + pseudo[b":authority"])
    is_chunked = not is_whole and not any(name == b"content-length" for name, _ in listed)
    if is_chunked:
        lines.append(b"transfer-encoding: chunked")
    line = b"%b %b HTTP/1.1" % (pseudo[b":method"], pseudo[b":path"])
    return b"\r\n".join([line, *lines, b"connection: close", b"", b""]), is_chunked


class WorkerStream(asyncio.Transport):
    """The application's transport for one request; it is paused while much of its response waits for the client's
    flow-control window."""

    def __init__(self, connection: WorkerHttp2Connection, number: int, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.number = number
        self._connection = connection
        self._protocol = protocol
        self._parser = httptools.HttpResponseParser(self)
        self._fields: list[tuple[bytes, bytes]] = []
        self._unread = 0
        self._is_reading = True
        self._is_head = self._is_chunked = self._has_begun = self._has_all = False
        self._is_closing = self._is_paused = False

    # ── from the client ──────────────────────────────────────────────────────────────────────────────────

    def begin(self, fields: Fields, is_whole: bool) -> None:
        """Pass the request's header to the application. Raises KeyError if it lacks method or path."""
        head, self._is_chunked = request_bytes(fields, is_whole)
        self._is_head = head.startswith(b"HEAD ")
        self._protocol.connection_made(self)
        self._protocol.data_received(head)

    def arrive(self, data: bytes) -> None:
        self._unread += len(data)
        if data and not self._is_closing:
            self._protocol.data_received(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        self._take_in()

    def arrive_end(self) -> None:
        if self._is_chunked and not self._is_closing:
            self._protocol.data_received(b"0\r\n\r\n")

    def lose(self, exc: Exception | None = None) -> None:
        """Handle a stream reset by the client, or the loss of the connection."""
        if not self._is_closing:
            self._is_closing = True
            self._protocol.connection_lost(exc)

    # ── callbacks of httptools for the application's bytes ───────────────────────────────────────────────

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        fields, self._fields = self._fields, []
        status = self._parser.get_status_code()
        if status >= 200:
            self._has_begun = True
            answer = [(b":status", b"%d" % status), *(one for one in fields if one[0] not in OF_CONNECTIONS)]
            is_whole = self._is_head or (b"content-length", b"0") in fields or status in (204, 304)
            self._has_all = is_whole
            self._connection.send_head(self.number, answer, is_whole)

    def on_body(self, data: bytes) -> None:
        self._connection.send_data(self.number, data, False)

    def on_message_complete(self) -> None:
        if self._has_begun and not self._has_all:
            self._has_all = True
            self._connection.send_data(self.number, b"", True)

    # ── the application's transport ──────────────────────────────────────────────────────────────────────

    def write(self, data: Buffer) -> None:
        if not self._is_closing and not (self._is_head and self._has_all):
            self._parser.feed_data(data)
            self._connection.flush()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._has_all:
                self._connection.reset_stream(self.number, ngh2.ErrorCode.INTERNAL_ERROR)
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        """Reset the client's whole connection, not only this stream."""
        self._connection.abort()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._take_in()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._connection.transport.get_extra_info(name, default)

    def _take_in(self) -> None:
        """Acknowledge what has been read, which reopens the client's window."""
        if self._is_reading and self._unread:
            size, self._unread = self._unread, 0
            self._connection.acknowledge(self.number, size)

    def update_backpressure(self) -> None:
        """Pause or resume the application; called when data has been sent."""
        is_full = self._connection.unsent(self.number) > MAX_BUFFERED_BYTES
        if is_full != self._is_paused and not self._is_closing:
            self._is_paused = is_full
            (self._protocol.pause_writing if is_full else self._protocol.resume_writing)()


ProtocolFactory = Callable[[], asyncio.Protocol]
PREFACE = b"PRI * HTTP/2.0"
WINDOW = 1 << 20
"""Flow-control window in bytes, per stream and per connection: the window of the link."""


class WorkerHttp2Connection(asyncio.Protocol):
    """HTTP/2 connection of one client. `serve` makes the application's protocol for each stream."""

    def __init__(self, serve: ProtocolFactory, settings: Settings, rng: Random) -> None:
        self._serve = serve
        self._settings = settings
        self._rng = rng
        span = settings.max_requests_per_connection
        self._most = None if span is None else rng.randint(*span)
        self._h2 = ngh2.Connection(ngh2.Role.SERVER, ngh2.Configuration(auto_window_update=False))
        self._streams: dict[int, WorkerStream] = {}
        self._begun = self._last = 0
        self._is_leaving = self._is_full = self._is_broken = False
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection(
            {
                ngh2.Setting.MAX_CONCURRENT_STREAMS: self._settings.max_streams,
                ngh2.Setting.INITIAL_WINDOW_SIZE: WINDOW,
                ngh2.Setting.MAX_HEADER_LIST_SIZE: 1 << 16,
            }
        )
        self._h2.set_local_window_size(WINDOW)
        self.flush()
        self._rest()

    def data_received(self, data: bytes) -> None:
        try:
            self._h2.receive_data(data)
        except ngh2.NGH2Error:
            self._is_broken = True
            self.transport.close()
            return
        self._meet_all()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_leaving = True
        self._stir()
        for stream in list(self._streams.values()):
            stream.lose(exc)
        self._streams.clear()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.flush()

    # ── called by streams ────────────────────────────────────────────────────────────────────────────────

    def unsent(self, number: int) -> int:
        """Return how many bytes of a response wait for the client's window or for the transport."""
        return self._h2.queued_body_size(number)

    def send_head(self, number: int, fields: list[tuple[bytes, bytes]], is_whole: bool) -> None:
        """Send the header of a response, in a packet of its own if so configured."""
        with suppress(ngh2.NGH2Error):  # of a stream or connection that has ended
            self._h2.send_response(number, fields, end_stream=is_whole)
        if self._settings.split_head:
            self.flush()

    def send_data(self, number: int, data: bytes, is_last: bool) -> None:
        """Send a part of a response, as the client's window allows."""
        with suppress(ngh2.NGH2Error):
            self._h2.send_data(number, data, end_stream=is_last)

    def acknowledge(self, number: int, size: int) -> None:
        """Acknowledge `size` bytes of a request body, which reopens the window."""
        with suppress(ngh2.NGH2Error):
            self._h2.acknowledge_received_data(size, number)
        self.flush()

    def reset_stream(self, number: int, code: ngh2.ErrorCode) -> None:
        """Reset a stream that ends without a response."""
        with suppress(ngh2.NGH2Error):
            self._h2.reset_stream(number, code)
        self.flush()

    def flush(self) -> None:
        """Write all prepared frames, in one write."""
        if self._is_full or self._is_broken or self.transport.is_closing():
            return
        if data := self._h2.data_to_send():
            self.transport.write(data)
        self._meet_all()
        for stream in list(self._streams.values()):
            stream.update_backpressure()

    def abort(self) -> None:
        """Reset the connection, and with it every stream."""
        reset(self.transport)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────

    def leave(self) -> None:
        """Close gracefully: send GOAWAY, answer active streams, close."""
        if not self._is_leaving:
            self._is_leaving = True
            with suppress(ngh2.NGH2Error):
                self._h2.send_goaway(last_stream_id=self._last)
            self.flush()

    # ── received frames ──────────────────────────────────────────────────────────────────────────────────

    def _meet_all(self) -> None:
        for event in self._h2.events():
            self._meet(event)

    def _meet(self, event: ngh2.Event) -> None:
        match event:
            case ngh2.RequestReceived(number, fields, is_whole):
                self._begin(number, fields, is_whole)
            case ngh2.DataReceived(number, data, is_last):
                if number in self._streams:
                    self._streams[number].arrive(data)
                    if is_last:
                        self._streams[number].arrive_end()
            case ngh2.TrailersReceived(number) if number in self._streams:
                self._streams[number].arrive_end()
            case ngh2.StreamClosed(number, code) if number in self._streams:
                stream = self._streams.pop(number)
                if code:
                    stream.lose()
                self._rest()
            case ngh2.ConnectionClosed():  # by either side's GOAWAY, when all streams have ended
                self._is_leaving = self._is_broken = True
                self._stir()
                self.transport.close()

    def _begin(self, number: int, fields: tuple[ngh2.Header, ...], is_whole: bool) -> None:
        self._stir()
        self._begun += 1
        self._last = number
        stream = self._streams[number] = WorkerStream(self, number, self._serve())
        try:
            stream.begin(fields, is_whole)
        except KeyError:  # CONNECT, which a worker does not support
            self.reset_stream(number, ngh2.ErrorCode.PROTOCOL_ERROR)
            return
        if self._begun == self._most:
            self.leave()

    # ── idle timeout ─────────────────────────────────────────────────────────────────────────────────────

    def _rest(self) -> None:
        """Start the idle timeout, configured or drawn, if no stream is active."""
        if self._streams or self._is_leaving or self.transport.is_closing():
            return
        self._stir()
        loop, drawn = asyncio.get_running_loop(), self._settings.close_idle
        if drawn is not None and self._begun:
            self._idle = loop.call_later(self._rng.uniform(*drawn), self.transport.close)
        else:
            self._idle = loop.call_later(self._settings.keep_alive, self.leave)

    def _stir(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
