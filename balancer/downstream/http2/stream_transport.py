"""Transport of one stream, for what takes over a client connection: a tunnel or the admin application.

client ── Http2Connection ── Http2Stream ── StreamTransport ── Relay (`tunnel.py`) ── worker
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from balancer.http.h1.body import Body, body_of
from balancer.http.h1.fields import END_OF_HEAD
from balancer.http.h1.response_head import incoming_response

if TYPE_CHECKING:
    from balancer.downstream.http2.stream import Http2Stream

NO_PROTOCOL, NO_TRANSPORT = asyncio.Protocol(), asyncio.Transport()
"""What replaces the real ones after the stream has ended; it breaks the reference cycles."""


class StreamTransport(asyncio.Transport):
    """A stream as a connection: END_STREAM is its FIN, RST_STREAM its RST."""

    def __init__(self, stream: Http2Stream) -> None:
        super().__init__()
        self._stream = stream
        self._protocol: asyncio.BaseProtocol = NO_PROTOCOL
        self._is_closing = self._has_ended = self._is_mute = False

    # --- from the client

    def arrived(self, data: bytes) -> None:
        """Deliver data of the client."""
        if not self._is_closing:
            cast(asyncio.Protocol, self._protocol).data_received(data)

    def ended(self) -> None:
        """Deliver the end of the client's data."""
        if not self._has_ended:
            self._has_ended = True
            if not self._is_closing and not cast(asyncio.Protocol, self._protocol).eof_received():
                self.close()

    def lost(self, error: Exception | None) -> None:
        """Report that the stream has ended early."""
        self._is_closing = self._is_mute = True
        protocol, self._protocol = self._protocol, NO_PROTOCOL
        cast(asyncio.Protocol, protocol).connection_lost(error)

    # --- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._is_mute:
            self._stream.send(None, bytes(data), is_last=False)

    def write_eof(self) -> None:
        if not self._is_mute:
            self._is_mute = True
            self._stream.end_tunnel()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """End the stream after sending what was written."""
        if not self._is_closing:
            self.write_eof()
            self._stream.finish()
            self._lose(None)

    def abort(self) -> None:
        """Reset the stream."""
        if not self._is_closing:
            self._lose(None)
            self._stream.reset()

    def _lose(self, error: Exception | None) -> None:
        self._is_closing = self._is_mute = True
        protocol, self._protocol = self._protocol, NO_PROTOCOL
        report: Callable[[Exception | None], None] = cast(asyncio.Protocol, protocol).connection_lost
        asyncio.get_running_loop().call_soon(report, error)

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return self._stream.unsent

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_reading(self) -> bool:
        return not self._is_closing

    def pause_reading(self) -> None:
        """Nothing to pause: the stream withholds its window while it is held."""

    def resume_reading(self) -> None:
        """Nothing to resume: the stream returns its window when it is no longer held."""


class AdminTransport(StreamTransport):
    """Transport of a stream whose request the admin application answers: it writes HTTP/1.1, and the client gets
    HTTP/2.

    It translates one response; the application closes after it."""

    def __init__(self, stream: Http2Stream) -> None:
        super().__init__(stream)
        self._head = b""  # as far as it has come
        self._body: Body | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        body, given = self._body, bytes(data)
        if body is None:
            head, end, given = (self._head + given).partition(END_OF_HEAD)
            if not end:
                self._head = head
                return
            response = incoming_response(head + b"\r\n")
            self._stream.send(self._stream.heads_of(response.status, response.block), b"", is_last=False)
            body = self._body = body_of(response.framing, response.length)
        super().write(body.feed(given))
