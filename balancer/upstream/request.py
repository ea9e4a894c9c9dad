"""Interface of one request to a worker: what the exchange uses of a leased upstream.

Two classes implement it: `UpstreamConnection` (HTTP/1.1, one request at a time) and `UpstreamStream` (one request on a
multiplexed connection). Both take the HTTP/1.1 head and the body without framing, and report the response to a
`ResponseSink`:

    upstream.send(head, sink, method, body)   begins a request, with what has come of its body
    upstream.write_body(data), end_body(trailers)     the rest of the body
    sink.response_whole(response, body)  a response complete in one read and of known length: replaces
                                        started, body, ended
    sink.response_started(response)     for each head, 1xx included
    sink.response_body(data)            bytes of the body without framing, never empty
    sink.response_chunks(data, framed)  in place of body and paused: data of whole chunks, and these as they came
    sink.response_paused()              everything read so far has been passed on, and more will follow
    sink.response_ended(trailers)       complete
    sink.response_failed(error)         instead of response_ended: an `UpstreamError`
    sink.upstream_paused() / upstream_resumed()      the write buffer is full / has drained

`UpstreamRequest` is a class and not a `typing.Protocol`: mypyc compiles a call through a native class to a vtable call
and an attribute of it to a field, but looks both up by name through a protocol.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from balancer.config.schema.limits import READ
from balancer.errors import ConnectFailed, UpstreamError
from balancer.http.h1.response_head import Response
from balancer.upstream.bounded_reader import LONGEST_READ
from balancer.upstream.dial.phases import DialTimes

SHORTEST: Final = READ
LONGEST: Final = LONGEST_READ


def next_size(size: int, unsent: int) -> int:
    """Double the size of reads if the receiver's kernel has taken everything that was written, else halve it."""
    size = size // 2 if unsent else 2 * size
    if size < SHORTEST:
        return SHORTEST
    return size if size < LONGEST else LONGEST


class RequestBody:
    """Body of a request for a worker, without framing, as far as it has come; buffered for retries.

    It is kept whole or not at all. Until an endpoint takes it, all of it is kept; after that only up to a limit. A
    longer body is streamed, and the request cannot be retried.
    """

    def __init__(self, limit: int, is_chunked: bool) -> None:
        self.limit = limit  # bytes that may stay buffered once they have been sent
        self.is_chunked = is_chunked  # its framing in HTTP/1.1, as the request's head states it
        self.trailers: bytes | None = None  # a block of fields or b"" once the body has come whole
        self.size = 0  # in bytes, without framing
        self.is_spent = False  # it has been discarded, so the request cannot be repeated
        self._pieces: list[bytes | bytearray | memoryview] = []

    @property
    def may_be_sent_twice(self) -> bool:
        """Whether the body is still here, and will be after it was sent."""
        return not self.is_spent and self.size <= self.limit

    def add(self, data: bytes) -> None:
        """Append received data, unless the body is spent."""
        if not self.is_spent:
            self._pieces.append(data)
            self.size += len(data)

    def between(self, head: bytes, end: bytes) -> bytes:
        """Return the buffered body between `head` and `end`. One write: two would be two packets and two wake-ups of
        the worker."""
        return b"".join([head, *self._pieces, end])

    def whole(self) -> bytes:
        """Return the buffered body, which is one piece from now on."""
        pieces = self._pieces
        whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if not isinstance(whole, bytes):
            whole = bytes(whole)
        self._pieces = [whole]
        return whole

    def sent(self) -> None:
        """Note that the buffered data was sent to an endpoint; discard it if it exceeds the limit."""
        if self.size > self.limit:
            self.spend()

    def spend(self) -> None:
        """Discard the buffered data: the request will not be repeated."""
        self._pieces = []
        self.is_spent = True


def whole_body(data: bytes, trailers: bytes = b"", *, is_chunked: bool = False) -> RequestBody:
    """Return the body of a request that is sent once."""
    body = RequestBody(0, is_chunked)
    if data:
        body.add(data)
    body.trailers = trailers
    return body


class ResponseSink:
    """Receiver of the events of one response; see the module's docstring. Abstract, and a class for the same reason."""

    @abstractmethod
    def response_whole(self, response: Response, body: bytes) -> None: ...
    @abstractmethod
    def response_started(self, response: Response) -> None: ...
    @abstractmethod
    def response_body(self, data: bytes) -> None: ...
    @abstractmethod
    def response_ended(self, trailers: bytes) -> None: ...
    @abstractmethod
    def response_failed(self, error: UpstreamError) -> None: ...

    def may_switch(self, response: Response) -> bool:
        """Return whether a 101 accepts what the request has offered; others are refused before they get here."""
        return False

    # Nothing to do for a sink that awaits the end of the response, and has sent its request whole.
    def response_paused(self) -> None: ...
    def upstream_paused(self) -> None: ...
    def upstream_resumed(self) -> None: ...

    def response_chunks(self, data: bytes, framed: bytes) -> None:
        self.response_body(data)
        self.response_paused()


class UpstreamRequest:
    """Request side of a leased upstream; abstract.

    `phases`: connect phases of its connection. `idle_since`: instant in seconds since which the connection had been
    idle when it was leased, 0: it is new. `read_size`: maximum bytes of one read, 0: no body has spanned several reads.
    """

    __slots__ = ("idle_since", "is_closed", "phases", "read_size")

    idle_since: float
    is_closed: bool
    phases: DialTimes
    read_size: int

    @abstractmethod
    def send(self, head: bytes, sink: ResponseSink, method: bytes, body: RequestBody | None = None) -> None:
        """Begin a request; its response goes to `sink`. `body` is what has come of its body, None without one."""

    @abstractmethod
    def write_body(self, data: bytes) -> None:
        """Send further bytes of the body."""

    @abstractmethod
    def end_body(self, trailers: bytes) -> None:
        """End the body; `trailers` is a block of fields or b""."""

    @abstractmethod
    def hand_over(self, sink: ResponseSink) -> None:
        """Send the remaining events of the response to `sink`. Must not be called once the response has ended."""

    @abstractmethod
    def release(self) -> None:
        """End the request and give the connection or stream back to its owner."""

    @abstractmethod
    def close(self) -> None:
        """Cancel the request; its sink gets no further events."""

    @abstractmethod
    def is_quiet(self) -> bool:
        """Whether nothing indicates that the worker has closed the connection."""

    @property
    @abstractmethod
    def unsent(self) -> int:
        """Bytes of the request in the write buffer."""

    @abstractmethod
    def set_read_size(self, size: int) -> None:
        """Read at most `size` bytes at once from now on, where the transport allows it."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Stop reading: the receiver of the response cannot keep up."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Resume reading after `pause_reading`."""


LARGEST_SHARED: Final = 8192
"""Maximum bytes of the head of a request that shares its connection: many workers refuse a larger field, some by ending
the connection."""


class UpstreamAttempt(ResponseSink):
    """One request over a leased upstream: the base of attempts for clients, copies and internal requests.

    A `LeaseWaiter`, and a `ResponseSink` but for the response itself; abstract. An upstream that it gets after its
    end returns to its pool."""

    upstream: UpstreamRequest | None = None  # None before it has one and after it has given it up
    is_over = False
    needs_own = False  # as in `LeaseWaiter`

    @abstractmethod
    def send(self, upstream: UpstreamRequest) -> None:
        """Send the request."""

    def connected(self, upstream: UpstreamRequest) -> None:
        """Send the request on the upstream that was waited for."""
        if self.is_over:
            upstream.release()
        else:
            self.send(upstream)

    @abstractmethod
    def connect_failed(self, error: ConnectFailed) -> None:
        """Report that no upstream could be opened."""

    def release(self, is_clean: bool) -> None:
        """Give up the upstream: return it to its pool if `is_clean`, else close it."""
        upstream, self.upstream = self.upstream, None
        if upstream is None:
            return
        if is_clean:
            upstream.release()
        else:
            upstream.close()
