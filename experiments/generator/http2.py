"""HTTP/2 client of the load generator: as many requests at a time on a connection as the server allows.

Frames are written and read by hand, so that a request costs as little as over HTTP/1.1. SETTINGS gives the server a
dynamic table (RFC 7541) of size 0.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import cast

from experiments.generator.client import AnswerReceiver, Connection, Sender
from experiments.generator.http2_fields import status_in

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 2, 3, 4
REFUSED_STREAM, CANCEL = (7).to_bytes(4, "big"), (8).to_bytes(4, "big")

FRAME_HEAD = 9
LARGEST_FRAME = 16_384
"""Bytes in a frame that each side takes unless it says otherwise (RFC 9113 section 4.2)."""

FIRST_WINDOW = 65_535
LARGEST_WINDOW = 2**31 - 1
MOST_STREAMS = 100
"""Requests at a time on a connection, if the server allows as many."""


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return b"%b%c%c%b%b" % (len(content).to_bytes(3, "big"), kind, flags, stream.to_bytes(4, "big"), content)


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *item) for item in values.items()))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BEGINNING = (
    PREFACE
    + settings({HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: LARGEST_WINDOW})
    + window_update(0, LARGEST_WINDOW - FIRST_WINDOW)
)


class Http2Stream:
    """A place on a connection for one request at a time, each of which has a stream of its own."""

    __slots__ = ("_connection", "body", "has_died", "number", "receiver", "status", "was_refused", "window")

    def __init__(self, connection: Http2Connection) -> None:
        self._connection = connection
        self.number = 0
        self.receiver: AnswerReceiver | None = None
        self.status = 0
        self.body = memoryview(b"")  # what is still to be sent of it
        self.window = 0
        self.has_died = False  # the connection closed before any part of the response
        self.was_refused = False  # the server has said that it did not process the request

    @property
    def is_reusable(self) -> bool:
        return self._connection.has_room

    @property
    def has_answered(self) -> bool:
        return self._connection.has_answered

    def send(
        self, request: bytes, receiver: AnswerReceiver, method: bytes = b"GET", body: bytes = b""
    ) -> None:
        """Send the header block `request` and a body; the response goes to `receiver`."""
        self.receiver, self.status, self.body = receiver, 0, memoryview(body)
        self.has_died = self.was_refused = False
        self._connection.begin(self, request)

    def close(self) -> None:
        """Cancel the request; its receiver gets no further events."""
        self._connection.cancel(self)


class Http2Owner:
    """Owner of a connection, which is notified of its end and of places that become free; this one ignores both."""

    def connection_closed(self, connection: Connection) -> None: ...
    def connection_draining(self, connection: Connection) -> None:
        """Send no further request on it."""

    def give_back(self, sender: Sender) -> None: ...


class Http2Connection(Connection):
    """Connection over which HTTP/2 is spoken without being asked for, with TLS by ALPN."""

    senders: Sequence[Http2Stream]

    def __init__(self, owner: Http2Owner) -> None:
        self._owner = owner
        self._ready = asyncio.get_running_loop().create_future()
        self._streams: dict[int, Http2Stream] = {}
        self._limit = MOST_STREAMS
        self._head, self._head_flags = b"", 0  # of a response, as far as it has come
        self._next = 1
        self._came = b""
        self._window = self._stream_window = FIRST_WINDOW
        self._received = 0  # bytes of DATA since the last WINDOW_UPDATE
        self._is_going = False  # the server takes no further request
        self.is_closed = False
        self.has_answered = False
        self.senders = ()

    @property
    def is_usable(self) -> bool:
        return not (self._is_going or self.is_closed)

    @property
    def has_room(self) -> bool:
        return self.is_usable and len(self._streams) < self._limit

    async def ready(self) -> None:
        """Wait for the server's settings. Raises `ConnectionError` if it does not speak HTTP/2."""
        await self._ready

    def close(self) -> None:
        """Close the connection at once; receivers get no further events."""
        self._streams.clear()
        if not self.is_closed:
            self._close()

    def begin(self, sender: Http2Stream, block: bytes) -> None:
        """Send the beginning of a request."""
        number = sender.number = self._next
        self._next += 2
        self._streams[number] = sender
        sender.window = self._stream_window
        flags = END_HEADERS if sender.body else END_HEADERS | END_STREAM
        self.transport.write(frame(HEADERS, flags, number, block))
        if sender.body:
            self._send_body(sender)

    def cancel(self, sender: Http2Stream) -> None:
        """Cancel the request of a stream, whose place becomes free."""
        if self._streams.pop(sender.number, None) is not None:
            self.transport.write(frame(RST_STREAM, 0, sender.number, CANCEL))
            self._release(sender)

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._refuse("the server does not offer HTTP/2 (ALPN h2)")
            return
        self.transport.write(BEGINNING)

    def data_received(self, data: bytes) -> None:
        came = self._came + data if self._came else data
        at, size = 0, len(came)
        while size - at >= FRAME_HEAD and not self.is_closed:
            end = at + FRAME_HEAD + int.from_bytes(came[at : at + 3], "big")
            if not self._ready.done() and came[at + 3] != SETTINGS:
                self._refuse("the server does not speak HTTP/2")
                return
            if end - at > FRAME_HEAD + LARGEST_FRAME:
                self._fail_all()
                return
            if end > size:
                break
            stream = int.from_bytes(came[at + 5 : at + FRAME_HEAD], "big") & LARGEST_WINDOW
            self._take(came[at + 3], came[at + 4], stream, came[at + FRAME_HEAD : end])
            at = end
        self._came = came[at:]

    def connection_lost(self, error: Exception | None) -> None:
        self._refuse("the server closed the connection instead of speaking HTTP/2")
        self._fail_all()

    # --- frames

    def _take(self, kind: int, flags: int, number: int, content: bytes) -> None:
        """Handle a frame. Others than these say nothing that is read."""
        if kind == DATA:
            self._take_response(kind, flags, number, content)
        elif kind in (HEADERS, CONTINUATION):
            head, flags = self._head + content, self._head_flags | flags
            self._head, self._head_flags = (b"", 0) if flags & END_HEADERS else (head, flags)
            if flags & END_HEADERS:
                self._take_response(HEADERS, flags, number, head)
        elif kind == RST_STREAM:
            self._fail(number, was_refused=content == REFUSED_STREAM)
        elif kind == SETTINGS and not flags & ACK:
            self._take_settings(content)
        elif kind == PING and not flags & ACK:
            self.transport.write(frame(PING, ACK, 0, content))
        elif kind == GOAWAY:
            self._take_goaway(int.from_bytes(content[:4], "big") & LARGEST_WINDOW)
        elif kind == WINDOW_UPDATE:
            self._take_window(number, int.from_bytes(content[:4], "big") & LARGEST_WINDOW)

    def _take_response(self, kind: int, flags: int, number: int, content: bytes) -> None:
        if kind == DATA:
            self._received += len(content)
            if self._received > LARGEST_WINDOW // 2:
                self.transport.write(window_update(0, self._received))
                self._received = 0
        sender = self._streams.get(number)
        if sender is None:
            return  # cancelled
        if kind == HEADERS and not sender.status:
            if flags & PADDED:
                content = content[1:]
            status = status_in(content[5:] if flags & PRIORITY else content)
            if status >= 200:
                sender.status, self.has_answered = status, True
                if sender.receiver is not None:
                    sender.receiver.answer_started(status, b"")
            elif status == 0:
                self.transport.write(frame(RST_STREAM, 0, number, CANCEL))
                self._fail(number)
                return
        if flags & END_STREAM:
            if sender.status:
                self._end(number)
            else:
                self._fail(number)

    def _take_settings(self, content: bytes) -> None:
        limit = self._limit
        for key, value in struct.iter_unpack(">HI", content[: len(content) // 6 * 6]):
            if key == INITIAL_WINDOW_SIZE:
                for sender in self._streams.values():
                    sender.window += value - self._stream_window
                self._stream_window = value
            elif key == MAX_CONCURRENT_STREAMS:
                limit = min(MOST_STREAMS, value)
        self.transport.write(frame(SETTINGS, ACK, 0))
        self.lacks = "no request allowed"
        has_new_limit, self._limit = limit != self._limit, limit
        if not self._ready.done() and limit:
            self.senders = [Http2Stream(self) for _ in range(limit)]
            self._ready.set_result(None)
        elif self._ready.done() and has_new_limit and self.is_usable:
            self._renew_places()
        self._send_bodies()

    def _renew_places(self) -> None:
        """Offer as many places as are free under a new limit; those in use become free as long as there is room."""
        self._owner.connection_draining(self)
        free = [Http2Stream(self) for _ in range(self._limit - len(self._streams))]
        self.senders = [*self._streams.values(), *free] or self.senders
        for sender in free:
            self._owner.give_back(sender)

    def _take_goaway(self, last: int) -> None:
        """Use the connection for no further request; those behind `last` were not processed."""
        self._is_going = True
        self._owner.connection_draining(self)
        for number in [number for number in self._streams if number > last]:
            self._fail(number, was_refused=True)
        self._close_if_drained()

    def _take_window(self, number: int, size: int) -> None:
        if number == 0:
            self._window += size
            self._send_bodies()
        elif (sender := self._streams.get(number)) is not None:
            sender.window += size
            self._send_body(sender)

    # --- bodies

    def _send_bodies(self) -> None:
        for sender in list(self._streams.values()):
            self._send_body(sender)

    def _send_body(self, sender: Http2Stream) -> None:
        """Send as much of a body as both windows allow."""
        while sender.body and (size := min(len(sender.body), self._window, sender.window, LARGEST_FRAME)) > 0:
            piece, sender.body = sender.body[:size], sender.body[size:]
            self._window -= size
            sender.window -= size
            flags = 0 if sender.body else END_STREAM
            self.transport.write(frame(DATA, flags, sender.number, bytes(piece)))

    # --- ends

    def _end(self, number: int) -> None:
        """End a response. A server may answer before it has the whole body; the rest is not sent."""
        sender = self._streams.pop(number)
        if sender.body:
            self.transport.write(frame(RST_STREAM, 0, number, CANCEL))
        receiver, sender.receiver = sender.receiver, None
        if receiver is not None:
            receiver.answer_ended()  # gives the place back
        self._close_if_drained()

    def _fail(self, number: int, *, was_refused: bool = False) -> None:
        sender = self._streams.pop(number, None)
        if sender is None:
            return
        sender.was_refused = was_refused
        receiver, sender.receiver = sender.receiver, None
        if receiver is not None:
            receiver.answer_failed()
        self._release(sender)

    def _fail_all(self) -> None:
        if not self.is_closed:
            self._close()
        streams, self._streams = self._streams, {}
        for sender in streams.values():
            sender.has_died = not sender.status
            receiver, sender.receiver = sender.receiver, None
            if receiver is not None:
                receiver.answer_failed()

    def _release(self, sender: Http2Stream) -> None:
        sender.receiver, sender.body = None, memoryview(b"")
        if self.is_usable:
            self._owner.give_back(sender)
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._is_going and not self._streams and not self.is_closed:
            self._close()

    def _refuse(self, reason: str) -> None:
        """Close a connection that is not ready yet."""
        if not self._ready.done():
            self._ready.set_exception(ConnectionError(reason))
            self._ready.exception()  # marks it as retrieved: it may have no waiter left
            self._close()

    def _close(self) -> None:
        self.is_closed = True
        self.transport.abort()
        if self.senders:
            self._owner.connection_closed(self)
