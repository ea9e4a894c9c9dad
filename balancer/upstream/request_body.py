"""Body of a request for a worker, without framing, as far as it has come; buffered for retries.

A body is kept whole or not at all. Until an endpoint takes it, all of it is kept; after that only up to a limit. A
longer body is streamed, and the request cannot be retried.
"""

from __future__ import annotations


class RequestBody:
    """A request body."""

    def __init__(self, limit: int, is_chunked: bool) -> None:
        self.limit = limit  # bytes that may stay buffered once they have been sent
        self.is_chunked = is_chunked  # its framing in HTTP/1.1, which the request's head states
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
