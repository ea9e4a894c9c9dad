"""Pipelined requests: data that a client sends before its last request is answered.

It is kept as received bytes. A few requests at a time are parsed in one go: that costs less than parsing each when its
turn comes, while thousands of parsed requests would take several times the memory of their bytes.
"""

from __future__ import annotations

from typing import Final

from balancer.errors import RequestRejected
from balancer.http.h1.fields import END_OF_HEAD
from balancer.http.h1.request_head import Request
from balancer.http.h1.request_reader import RequestReader

BATCH: Final = 16
BATCH_SIZE: Final = 4_096
"""Maximum requests, and bytes of their heads, parsed in one go; the last head may exceed the latter."""

WINDOW: Final = 4_096
"""Bytes of a body taken at a time. The data that follows the body in them is copied, so without a limit the cost of a
read full of small requests would grow with its square."""


class PipelinedBytes:
    """Pipelined data. `since` is when it came; `has_ended`: the client has sent its FIN after it."""

    __slots__ = ("_at", "_data", "_fault", "_requests", "has_ended", "since")

    def __init__(self, data: bytes, since: float) -> None:
        self._data = data
        self._at = 0  # offset up to which the data has been parsed or taken
        self._requests: list[Request] = []  # parsed and not yet begun, in reverse order
        self._fault: RequestRejected | None = None  # the error of what follows `_requests`
        self.since = since
        self.has_ended = False

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data) and not self._requests and self._fault is None

    def add(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data
        self._at = 0

    def next(self, reader: RequestReader) -> Request | None:
        """Return the next request, None if no complete head is left. Raises `RequestRejected`."""
        if not self._requests and self._fault is None and not reader.head:
            self._parse(reader)
        if self._requests:
            return self._requests.pop()
        if self._fault is not None:
            raise self._fault
        return None

    def _parse(self, reader: RequestReader) -> None:
        """Parse requests that follow each other without anything in between."""
        data, at = self._data, self._at
        until = at + BATCH_SIZE
        requests = self._requests
        try:
            while at < until and len(requests) < BATCH:
                end = data.find(END_OF_HEAD, at) + len(END_OF_HEAD)
                if end < at + len(END_OF_HEAD):
                    break
                head, at = data[at:end], end
                request = reader.read(head)
                if request is not None:  # else these were empty lines
                    requests.append(request)
                    fields = request.fields
                    if fields.has_body or fields.is_offer or not fields.keep_alive:
                        break
        except RequestRejected as error:
            self._fault = error
        self._at = at
        requests.reverse()

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
