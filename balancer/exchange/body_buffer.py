"""Buffer of a request body for retries.

A body is kept whole or not at all. Until an endpoint takes it, all of it is kept; after that only up to a limit. A
longer body is streamed, and the request cannot be retried.
"""

from __future__ import annotations


class BodyBuffer:
    """A request body as it is sent, framing included.

    `size` is in bytes; `limit` is how many bytes may stay buffered once they have been sent. `is_spent`: the body has
    been discarded, so the request cannot be repeated.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._pieces: list[bytes | bytearray | memoryview] = []
        self.size = 0
        self.is_spent = False

    @property
    def may_be_sent_twice(self) -> bool:
        """Whether the body is still here, and will be after it was sent."""
        return not self.is_spent and self.size <= self.limit

    def add(self, data: bytes) -> None:
        """Append received data, unless the body is spent."""
        if not self.is_spent:
            self._pieces.append(data)
            self.size += len(data)

    def behind(self, head: bytes) -> bytes:
        """Return the head followed by the buffered body. One write: two would be two packets and two wake-ups of the
        worker."""
        return b"".join([head, *self._pieces])

    def sent(self) -> None:
        """Note that the buffered data was sent to an endpoint; discard it if it exceeds the limit."""
        if self.size > self.limit:
            self.spend()

    def spend(self) -> None:
        """Discard the buffered data: the request will not be repeated."""
        self._pieces = []
        self.is_spent = True
