"""One request on a multiplexed connection, with the interface of `UpstreamConnection`.

Rule of this file: the requests' side cannot tell it from a connection. It takes the HTTP/1.1 head and the framed body
that a connection would have sent, and tells of a response in the same events; whoever carries it sees a request taken
apart (`outline.py`) and bytes without framing. A response is judged here as strictly as over a connection: what its
head says of its length must hold, since the client is told the same.

    carrier.begin(errand, outline) -> Stream     the request's head; its body follows by the stream
    errand.took_head(head), took_body(data), took_end(trailers)      what has come, in order
    errand.tell()                                all that has come is passed on: once for each read
    errand.fail(error)                           instead of `took_end`; never from within `begin`
    errand.paused(), errand.resumed()            too much of the body waits here / no more
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from balancer.errors import ConnectionBroken, MalformedResponse, UnsupportedByTransport, UpstreamError
from balancer.http1.body import Body
from balancer.http1.field_list import FieldList, parse_head
from balancer.http1.fields import END_OF_HEAD, Framing
from balancer.http1.response_head import INTERIM_LIMIT, Response, ResponseHeads, bound_size
from balancer.upstream.connect_phases import NOTHING, Phases
from balancer.upstream.connection import ConnectionOwner, ResponseSink, UpstreamConnection
from balancer.upstream.pool_limits import UNBOUNDED

if TYPE_CHECKING:
    from balancer.upstream.pool_limits import PoolLimits

LENGTH: Final = Framing.LENGTH


class Stream(Protocol):
    """One request's way through a carrier."""

    @property
    def unsent(self) -> int:
        """Bytes of the body that wait here."""

    def send(self, data: bytes) -> None:
        """Bytes of the body, without framing."""

    def send_end(self, trailers: bytes) -> None:
        """The body is whole; `trailers` is a block or b""."""

    def pause(self) -> None:
        """Let the worker wait."""

    def resume(self) -> None:
        """Undo `pause`."""

    def cancel(self) -> None:
        """Nobody waits for the response any more, nor for the request to go out; nothing, where that is over."""


@dataclass(slots=True)
class ConnectionLife:
    """One carrier's. Its `name` is our end's address. In seconds: `opened_at`, `retire_at`, and `idle_since`, when it
    last had an errand; `requests` it has had of those `granted`."""

    phases: Phases = NOTHING
    name: str = ""
    opened_at: float = 0.0
    retire_at: float = inf
    idle_since: float = 0.0
    requests: int = 0
    granted: int = UNBOUNDED


class MultiplexedConnection(Protocol):
    """A connection of many streams, or a library's client. `leased`: errands that it has; `heads` reads its responses;
    `life` is the pool's. `is_library`: it keeps its connections itself, ages and counts them."""

    is_library: bool
    heads: ResponseHeads
    leased: int
    life: ConnectionLife

    @property
    def room(self) -> int:
        """Errands more that it may be given."""

    def begin(self, errand: UpstreamStream, outline: FieldList) -> Stream: ...

    def is_quiet(self) -> bool:
        """Whether nothing says that it might be going; if it may be, it gives no room until that is known."""

    def retire(self) -> None:
        """Take no more; be gone when nothing is left."""

    def close(self) -> None:
        """Be gone."""

    def prune(self, now: float, limits: PoolLimits) -> None:
        """The sweep."""


def drop(data: bytes) -> None:
    """Nobody is there to take it."""


class UpstreamStream(UpstreamConnection):
    """One request; made when it is leased, and never used twice."""

    __slots__ = (
        "_framed",
        "_is_ended",
        "_is_parted",
        "_is_told",
        "_left",
        "_pieces",
        "_stream",
        "_trailers",
        "carrier",
    )

    def __init__(self, owner: ConnectionOwner, carrier: MultiplexedConnection) -> None:
        super().__init__(owner)
        self.carrier = carrier
        self.write = self._write
        self._framed: Body | None = None  # what is still to come of the request's
        self._stream: Stream | None = None
        self._left = -1  # bytes of the response's body that its head has promised; -1: it has not
        self._pieces: list[bytes] = []
        self._trailers = b""
        self._is_told = False  # the sink has the head
        self._is_ended = False  # all has come
        self._is_parted = False

    # --- towards the worker

    def send(self, head: bytes, sink: ResponseSink, method: bytes) -> None:
        """Begin the request."""
        end = head.find(END_OF_HEAD) + 4
        self._sink = sink
        self._is_head_request = method == b"HEAD"
        if method == b"CONNECT":
            error = UnsupportedByTransport("CONNECT needs an endpoint with the native transport")
            asyncio.get_running_loop().call_soon(self.fail, error)
            return
        outline = parse_head(head[:end])
        self._framed = outline.framed()
        self._stream = self.carrier.begin(self, outline)
        if end < len(head):
            self._write(head[end:])

    def _write(self, data: bytes) -> None:
        body, stream = self._framed, self._stream
        if body is None or stream is None:
            return
        for piece in body.feed(data):
            stream.send(piece)
        if body.is_ended:
            self._framed = None
            stream.send_end(body.trailers)

    def release(self) -> None:
        """The request is over."""
        self._part()

    def close(self) -> None:
        """Give the request up; nobody hears of it any more."""
        self._sink = None
        self._part()

    def detach(self) -> bytes:
        """Nothing here can become a tunnel; a response that asks for one is refused before."""
        self.close()
        return b""

    def is_quiet(self) -> bool:
        return self.carrier.is_quiet()

    @property
    def unsent(self) -> int:
        return 0 if self._stream is None else self._stream.unsent

    def set_read_size(self, size: int) -> None:
        """Nothing: what is read ahead is bounded by the window of the stream, or by the library."""

    def pause_reading(self) -> None:
        if not self._reading_paused and self._stream is not None:
            self._reading_paused = True
            self._stream.pause()

    def resume_reading(self) -> None:
        if self._reading_paused and self._stream is not None:
            self._reading_paused = False
            self._stream.resume()

    def _part(self) -> None:
        """The carrier is done with it, and hears so once."""
        if self._is_parted:
            return
        self._is_parted = self.is_closed = True
        self.write = drop  # a method of one's own is a circle of references
        stream, self._stream = self._stream, None
        if stream is not None and (self._framed is not None or not self._is_ended or stream.unsent):
            stream.cancel()
        self._owner.give_back(self)

    # --- from the carrier

    def took_head(self, head: bytes) -> None:
        """A head has come, an interim one or the last, but for its empty line."""
        if self._sink is None:
            return
        try:
            if self._response is not None:
                raise MalformedResponse("a second head within a response")
            bound_size(head)
            response = self.carrier.heads.incoming(head)
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

    def took_body(self, data: bytes) -> None:
        """Bytes of the body."""
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

    def took_end(self, trailers: bytes = b"") -> None:
        """The response is whole."""
        if self._sink is None:
            self._is_ended = True
        elif self._response is None:
            self.fail(MalformedResponse("the response ended before its head"))
        elif self._left > 0:
            self.fail(ConnectionBroken(f"the response ended {self._left} bytes before its end"))
        else:
            self._trailers = trailers
            self._is_ended = True

    def tell(self) -> None:
        """Pass on what has come since."""
        response, sink = self._response, self._sink
        if response is None or sink is None:
            return
        if not self._is_told:
            self._is_told = True
            if self._is_ended and response.framing is LENGTH and not (self._is_odd(response)):
                self._sink = None
                sink.response_whole(response, b"".join(self._pieces))
                return
            sink.response_started(response)
        self._tell_body()

    def _is_odd(self, response: Response) -> bool:
        """Whether a body, or none, is not what the head says, or there is more to tell than a body."""
        return self._is_head_request or response.is_bodiless or self._trailers != b""

    def _tell_body(self) -> None:
        """To whoever it is for by now: the head may have changed that."""
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
        """There will be no more of the response, and what has not been told is not."""
        sink, self._sink = self._sink, None
        self._pieces = []
        if sink is None:
            self._part()
            return
        self._cancel()
        sink.response_failed(error)

    def _cancel(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    def paused(self) -> None:
        """Too much of the request's body waits here."""
        if self._sink is not None:
            self._sink.upstream_paused()

    def resumed(self) -> None:
        """It has gone out."""
        if self._sink is not None:
            self._sink.upstream_resumed()
