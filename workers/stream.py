"""HTTP/2 stream, presented to the worker's application as an HTTP/1.1 connection with one request.

It only translates, so slots, queues, faults and bodies are the same in both versions. The application is paused while
much of its response waits for the client's flow-control window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

import httptools

Fields = Iterable[tuple[bytes, bytes]]
Buffer = bytes | bytearray | memoryview

MAX_BUFFERED_BYTES = 1 << 17
"""Bytes of a response that may wait for the client's window before the application is paused."""

OF_CONNECTIONS = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"expect"))
"""Connection-specific fields, which HTTP/2 does not allow (RFC 9113 § 8.2.2), and `expect`, as 100-continue is not
supported."""


class StreamConnection(Protocol):
    """Connection of a stream: writes its frames, within the client's flow-control window."""

    transport: asyncio.Transport

    def unsent(self, number: int) -> int: ...
    def send_head(self, number: int, fields: list[tuple[bytes, bytes]], is_whole: bool) -> None: ...
    def send_data(self, number: int, data: bytes, is_last: bool) -> None: ...
    def acknowledge(self, number: int, size: int) -> None: ...
    def break_off(self, number: int) -> None: ...
    def flush(self) -> None: ...
    def abort(self) -> None: ...


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
    """The application's transport for one request."""

    def __init__(self, connection: StreamConnection, number: int, protocol: asyncio.Protocol) -> None:
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
        """Pass on a part of the request body."""
        self._unread += len(data)
        if data and not self._is_closing:
            self._protocol.data_received(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        self._take_in()

    def arrive_end(self) -> None:
        """Handle the end of the request body."""
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
                self._connection.break_off(self.number)
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

    def is_reading(self) -> bool:
        return self._is_reading

    def get_write_buffer_size(self) -> int:
        return self._connection.unsent(self.number)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._connection.transport.get_extra_info(name, default)

    def _take_in(self) -> None:
        """Acknowledge what has been read, which reopens the client's window."""
        if self._is_reading and self._unread:
            size, self._unread = self._unread, 0
            self._connection.acknowledge(self.number, size)

    def update_backpressure(self) -> None:
        """Pause or resume the application; called when data has been sent."""
        is_full = self.get_write_buffer_size() > MAX_BUFFERED_BYTES
        if is_full != self._is_paused and not self._is_closing:
            self._is_paused = is_full
            (self._protocol.pause_writing if is_full else self._protocol.resume_writing)()
