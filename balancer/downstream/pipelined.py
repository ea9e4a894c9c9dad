"""Pipelined requests: data that a client sends before its last request is answered.

It is kept as received bytes, of which each request is parsed when its turn comes: thousands of parsed ones would take
several times the memory.
"""

from __future__ import annotations

from typing import Final

from balancer.http.h1.fields import END_OF_HEAD
from balancer.http.h1.request_head import Request
from balancer.http.h1.request_reader import RequestReader

WINDOW: Final = 4_096
"""Bytes of a body taken at a time. The data that follows the body in them is copied, so without a limit the cost of a
read full of small requests would grow with its square."""


class PipelinedBytes:
    """Pipelined data. `since` is when it came; `has_ended`: the client has sent its FIN after it."""

    __slots__ = ("_at", "_data", "has_ended", "since")

    def __init__(self, data: bytes, since: float) -> None:
        self._data = data
        self._at = 0  # offset up to which the data has been parsed or taken
        self.since = since
        self.has_ended = False

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data)

    def add(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data
        self._at = 0

    def next(self, reader: RequestReader) -> Request | None:
        """Return the next request, None if no complete head is left. Raises `RequestRejected`."""
        while not reader.head:
            at = self._at
            end = self._data.find(END_OF_HEAD, at) + len(END_OF_HEAD)
            if end < at + len(END_OF_HEAD):
                break
            self._at = end
            request = reader.read(self._data[at:end])
            if request is not None:  # else these were empty lines
                return request
        return None

    def take(self) -> bytes:
        """Remove and return the next `WINDOW` bytes, or all if there are fewer."""
        at = self._at
        self._at = min(at + WINDOW, len(self._data))
        return self._data[at : self._at]

    def take_all(self) -> bytes:
        data, self._data, self._at = self._data[self._at :], b"", 0
        return data

    def put_back(self, size: int) -> None:
        """Return the last `size` bytes taken, which belong to the next request."""
        self._at -= size
