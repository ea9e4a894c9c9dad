"""Upstream stream: one request on a multiplexed connection; implements `UpstreamRequest`.

It takes the HTTP/1.1 head that a connection would send, and reports the response in the same events. The multiplexed
connection gets the head parsed (`http/h1/field_list.py`).
Responses are validated as strictly as over HTTP/1.1: the body must have the length that its head declares, since the
client gets the same head.

    connection.begin(stream, outline) -> Stream   sends the request's head; its body follows by the stream
    stream.receive_head(head), receive_body(data), receive_end(trailers)      parts of the response, in order
    stream.deliver()                              passes on all parts so far: once for each read
    stream.fail(error)                            instead of `receive_end`; never from within `begin`
    stream.paused(), stream.resumed()             the buffer of the request's body is full / has drained
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from balancer.config.schema.pool import UNLIMITED_REQUESTS, PoolConfig
from balancer.errors import ConnectionBroken, MalformedResponse, UnsupportedByTransport, UpstreamError
from balancer.http.h1.chunks import passing_trailers
from balancer.http.h1.field_list import FieldList, parse_head
from balancer.http.h1.fields import Framing
from balancer.http.h1.response_head import INTERIM_LIMIT, Response, ResponseHeads
from balancer.upstream.dial.phases import NOTHING, DialTimes
from balancer.upstream.request import RequestBody, ResponseSink, UpstreamRequest

LENGTH: Final = Framing.LENGTH

PIECE: Final = 65_536
"""Maximum bytes of a request's body passed on at once: a stream cuts a piece into frames, and copies what is left."""


class Stream(Protocol):
    """Request side of one stream of a multiplexed connection."""

    @property
    def unsent(self) -> int:
        """Bytes of the request's body in the buffer."""

    def send(self, data: bytes) -> None:
        """Send bytes of the request's body, without framing."""

    def send_end(self, trailers: bytes) -> None:
        """End the request's body; `trailers` is a block of fields or empty."""

    def pause(self) -> None:
        """Stop reading the response (flow control)."""

    def resume(self) -> None:
        """Resume reading the response after `pause`."""

    def cancel(self) -> None:
        """Cancel request and response; does nothing once the stream has ended."""


@dataclass(slots=True)
class ConnectionRecord:
    """Pool's record of one multiplexed connection.

    `name`: local address and port. `opened_at`, `retire_at` and `idle_since`, the end of its last stream, in seconds.
    `requests`: streams begun, of those `granted`. `is_taken`: its only stream shares it with no other.
    """

    phases: DialTimes = NOTHING
    name: str = ""
    opened_at: float = 0.0
    retire_at: float = inf
    idle_since: float = 0.0
    requests: int = 0
    granted: int = UNLIMITED_REQUESTS
    is_taken: bool = False


class MultiplexedConnection(Protocol):
    """Connection that carries many streams, or the client of a library.

    `leased`: number of streams in use. `heads`: parser of response heads. `life`: the pool's record.
    """

    heads: ResponseHeads
    leased: int
    life: ConnectionRecord

    @property
    def room(self) -> int:
        """Number of streams that may still be opened."""

    def begin(self, stream: UpstreamStream, outline: FieldList) -> Stream: ...

    def is_quiet(self) -> bool:
        """Whether nothing indicates that the worker is closing the connection. If it may be, `room` is 0 until that is
        known."""

    def retire(self) -> None:
        """Take no more streams, and close when the last one has ended."""

    def close(self) -> None:
        """Close the connection at once, with all its streams."""

    def prune(self, now: float, limits: PoolConfig) -> None:
        """Age the connection; called by the sweep at `now`."""


class StreamOwner(Protocol):
    """Owner of a stream, its pool."""

    def give_back(self, stream: UpstreamStream) -> None: ...


class UpstreamStream(UpstreamRequest):
    """Upstream stream of one request; created by a lease and never reused."""

    def __init__(self, owner: StreamOwner, connection: MultiplexedConnection) -> None:
        self._owner = owner
        self.connection = connection
        self.idle_since = 0.0
        self.is_closed = False
        self.phases = NOTHING
        self.read_size = 0
        self._is_sending = False  # the request's body has not ended
        self._stream: Stream | None = None
        self._left = -1  # remaining bytes of the response's body; -1: unknown length
        self._pieces: list[bytes] = []
        self._trailers = b""
        self._head_delivered = False  # the head has been passed to the sink
        self._is_ended = False  # the response is complete
        self._is_released = False
        self._sink: ResponseSink | None = None
        self._is_head_request = self._reading_paused = False
        self._response: Response | None = None  # its final head
        self._interims = 0  # responses before the final one

    # --- towards the worker

    def send(self, head: bytes, sink: ResponseSink, method: bytes, body: RequestBody | None = None) -> None:
        self._sink = sink
        self._is_head_request = method == b"HEAD"
        if method == b"CONNECT":
            error = UnsupportedByTransport("CONNECT needs an endpoint with the native transport")
            asyncio.get_running_loop().call_soon(self.fail, error)
            return
        self._is_sending = body is not None
        self._stream = self.connection.begin(self, parse_head(head))
        if body is not None:
            if body.size:
                self.write_body(body.between(b"", b""))
            if body.trailers is not None:
                self.end_body(body.trailers)

    def write_body(self, data: bytes) -> None:
        for at in range(0, len(data), PIECE):
            if self._stream is not None and self._is_sending:
                self._stream.send(data[at : at + PIECE])

    def end_body(self, trailers: bytes) -> None:
        if self._stream is not None and self._is_sending:
            self._is_sending = False
            self._stream.send_end(passing_trailers(trailers))

    def hand_over(self, sink: ResponseSink) -> None:
        self._sink = sink

    def release(self) -> None:
        """End the request and give the stream back to its pool, once."""
        if self._is_released:
            return
        self._is_released = self.is_closed = True
        stream, self._stream = self._stream, None
        if stream is not None and (self._is_sending or not self._is_ended or stream.unsent):
            stream.cancel()
        self._owner.give_back(self)

    def close(self) -> None:
        self._sink = None
        self.release()

    def is_quiet(self) -> bool:
        return self.connection.is_quiet()

    @property
    def unsent(self) -> int:
        return 0 if self._stream is None else self._stream.unsent

    def set_read_size(self, size: int) -> None:
        """Do nothing: read-ahead is bounded by the stream's window or by the library."""

    def pause_reading(self) -> None:
        if not self._reading_paused and self._stream is not None:
            self._reading_paused = True
            self._stream.pause()

    def resume_reading(self) -> None:
        if self._reading_paused and self._stream is not None:
            self._reading_paused = False
            self._stream.resume()

    # --- from the multiplexed connection

    def receive_head(self, head: bytes) -> None:
        """Take a final or interim response head, without its empty line."""
        if self._sink is None:
            return
        try:
            if self._response is not None:
                raise MalformedResponse("a second head within a response")
            response = self.connection.heads.incoming(head)
            if response.status == 101:
                raise MalformedResponse("101 for a request without Upgrade")
        except MalformedResponse as error:
            self.fail(error)
            return
        if response.status < 200:
            self._interims += 1
            if self._interims > INTERIM_LIMIT:
                self.fail(MalformedResponse(f"more than {INTERIM_LIMIT} interim responses"))
            else:
                self._sink.response_started(response)
            return
        self._response = response
        if self._is_head_request or response.is_bodiless:
            self._left = 0
        elif response.framing is LENGTH:
            self._left = response.length

    def receive_body(self, data: bytes) -> None:
        """Take bytes of the response's body."""
        if self._sink is None or not data:
            return
        if self._response is None:
            self.fail(MalformedResponse("a body without a head"))
        elif 0 <= self._left < len(data):
            self.fail(MalformedResponse("more of a body than its head promises"))
        else:
            if self._left > 0:
                self._left -= len(data)
            self._pieces.append(data)

    def receive_end(self, trailers: bytes = b"") -> None:
        """Take the end of the response."""
        if self._sink is None:
            self._is_ended = True
        elif self._response is None:
            self.fail(MalformedResponse("the response ended before its head"))
        elif self._left > 0:
            self.fail(ConnectionBroken(f"the response ended {self._left} bytes before its end"))
        else:
            self._trailers = trailers
            self._is_ended = True

    def deliver(self) -> None:
        """Pass everything taken so far to the sink."""
        response, sink = self._response, self._sink
        if response is None or sink is None:
            return
        if not self._head_delivered:
            self._head_delivered = True
            if self._is_ended and response.framing is LENGTH and not (self._is_odd(response)):
                self._sink = None
                sink.response_whole(response, b"".join(self._pieces))
                return
            sink.response_started(response)
        self._deliver_body()

    def _is_odd(self, response: Response) -> bool:
        """Whether the length in the head does not describe a body (HEAD, 204, 304), or trailers follow it."""
        return self._is_head_request or response.is_bodiless or self._trailers != b""

    def _deliver_body(self) -> None:
        """Pass on the body to the current sink, which the head's event may have replaced."""
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            if self._sink is not None:
                self._sink.response_body(piece)
        sink = self._sink
        if sink is None:
            return
        if self._is_ended:
            self._sink = None
            sink.response_ended(self._trailers)
        else:
            sink.response_paused()

    def fail(self, error: UpstreamError) -> None:
        """Fail the response; what has not been passed on is discarded."""
        sink, self._sink = self._sink, None
        self._pieces = []
        if sink is None:
            self.release()
            return
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
        sink.response_failed(error)

    def paused(self) -> None:
        """Pause the sender: the buffer of the request's body is full."""
        if self._sink is not None:
            self._sink.upstream_paused()

    def resumed(self) -> None:
        """Resume the sender: the buffer has drained."""
        if self._sink is not None:
            self._sink.upstream_resumed()
