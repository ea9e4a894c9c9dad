"""Open streams of a client's HTTP/2 connection: what workers send in one iteration of the loop is sent in one write."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from balancer.cluster.cluster import Cluster
from balancer.errors import MalformedResponse
from balancer.exchange.responder import ClientSide
from balancer.http.h1.field_list import Fields, fields_of
from balancer.http.h1.fields import OF_ONE_CONNECTION
from balancer.http.h2.events import NO_ERROR
from balancer.http.h2.limits import Http2Limits
from balancer.http.h2.sendable import UnsendableFields, sendable
from balancer.http.h2.server_engine import ServerEngine

if TYPE_CHECKING:
    from balancer.downstream.http2.stream import Http2Stream


class StreamResponseHeads:
    """Translates the response heads of one connection; a head equal to the last one is not translated again."""

    def __init__(self) -> None:
        self._block = b""
        self._status = 0
        self._fields: Fields = []  # the result for these, the last ones

    def fields_of(self, status: int, block: bytes) -> Fields:
        """Return the fields of a head. Raises `MalformedResponse`."""
        if block != self._block or status != self._status:
            self._fields = translated(status, block)
            self._block, self._status = block, status
        return self._fields


def translated(status: int, block: bytes) -> Fields:
    """Return the fields of a head. Raises `MalformedResponse`."""
    pairs: Fields = [(b":status", b"%d" % status)]
    for name, value in fields_of(block):
        lower = name.lower()
        if lower not in OF_ONE_CONNECTION:
            pairs.append((name, value))
    try:
        return sendable(pairs)
    except UnsendableFields as error:
        raise MalformedResponse(f"HTTP/2 does not allow {error}") from None


def own_message(response: bytes) -> tuple[int, bytes, bytes]:
    """Return status, block of fields and body of a whole response of the balancer's own, in HTTP/1.1."""
    head, _, body = response.partition(b"\r\n\r\n")
    line, end, fields = head.partition(b"\r\n")
    return int(line[9:12]), end + fields + b"\r\n", body


CROWD: Final = 16
"""Open streams of a connection above which reads from workers are shorter, the first one of a response, too: with a
slow client, each stream keeps what one read has brought."""

BYTES_PER_WRITE: Final = 131_072
"""Bytes taken from the engine until the transport may say that its buffer is full."""


class OpenStreams(ClientSide):
    """The part of a connection that its streams use; abstract."""

    write: Callable[[bytes], None]

    def __init__(self, cluster: Cluster, limits: Http2Limits) -> None:
        super().__init__(cluster, cluster.now())
        self.engine = ServerEngine(limits, connect=True)
        self.response_heads = StreamResponseHeads()
        self._high = cluster.limits.high_water
        self._streams: dict[int, Http2Stream] = {}  # in order of arrival
        self._ended: dict[int, Http2Stream] = {}  # answered ones, whose response the client has not taken
        self._watched: dict[Http2Stream, None] = {}  # of which a part of the response has been sent
        self._flush_is_due = False  # at the end of this read, or scheduled
        self._is_reading = False

    @property
    def answering(self) -> int:
        return len(self._streams)

    def count_fault(self) -> None:
        """Count a request that is refused by the client's fault as a reset; many share a trusted proxy's connection."""
        if not self.client.is_trusted:
            self.engine.count_fault()

    def stream_ended(self, stream: Http2Stream, now: float) -> None:
        """Send the end of a stream that has been answered, and forget it once the client has taken the response.

        Where other streams are open, their responses may come in this iteration of the event loop, too.
        """
        streams = self._streams
        if streams.pop(stream.id, None) is None:
            return
        if stream.is_long:
            self._ended[stream.id] = stream
        self.idle_since = now or self._cluster.now()
        if streams or self._is_reading or self._flush_is_due:
            self.flush_soon()
        else:
            self._flush()

    def forget(self, stream: Http2Stream) -> None:
        """Forget a stream that was reset."""
        self.idle_since = self._cluster.now()
        self._streams.pop(stream.id, None)
        self._ended.pop(stream.id, None)
        self._watched.pop(stream, None)
        stream.uncharge()

    def watch(self, stream: Http2Stream) -> None:
        """Send soon, and pause the stream's response while the client does not take it: at once, since the event loop
        may read from one worker many times in an iteration.
        """
        self._watched[stream] = None
        stream.note_pressure(self._high_of_each())
        self.flush_soon()

    def flush_soon(self) -> None:
        """Send what was submitted at the end of this read, or of this iteration of the event loop."""
        if not self._flush_is_due:
            self._flush_is_due = True
            if not self._is_reading:
                asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        engine = self.engine
        self._flush_is_due = False
        if self.transport.is_closing():
            return
        while not engine.is_blocked:  # with many streams, all at once would fill the transport's buffer
            data = engine.data_to_send(BYTES_PER_WRITE)
            if data:
                self.write(data)
            if len(data) < BYTES_PER_WRITE:
                break
        if self._ended:
            self._forget_sent()
        if self._watched:
            self._note_pressure()
        if engine.is_leaving or engine.is_closed:
            self._handle_events()
        elif not self._process.keeps_alive and not self._streams:
            self._leave()

    def _forget_sent(self) -> None:
        """Forget the answered streams of whose response the client has taken all; reset those that break off. The idle
        time starts with the last."""
        is_sent = not self.engine.unsent_in_all
        for stream in list(self._ended.values()):
            if is_sent or not stream.unsent:
                stream.uncharge()
                del self._ended[stream.id]
                if stream.cut_code != NO_ERROR:
                    self.engine.reset(stream.id, stream.cut_code)
                    self.flush_soon()
        if not self._ended:
            self.idle_since = self._cluster.now()

    def _high_of_each(self) -> int:
        """Return the bytes of a stream that may wait before its response is paused: fewer where many are open."""
        number = len(self._streams)
        return self._high if number <= CROWD else self._high * CROWD // number

    def _note_pressure(self) -> None:
        high = self._high_of_each()
        for stream in list(self._watched):
            if not stream.note_pressure(high):
                self._watched.pop(stream, None)

    def _handle_events(self) -> None:
        """Handle the events that sending has caused."""
        for kind, stream_id, value, flag in self.engine.events():
            self._handle(kind, stream_id, value, flag)

    @abstractmethod
    def _handle(self, kind: int, stream_id: int, value: object, flag: bool) -> None:
        """Handle an event other than HEAD and DATA."""

    @abstractmethod
    def _leave(self) -> None:
        """Tell the client to use another connection (RFC 9113 § 6.8), and close when its streams have ended."""
