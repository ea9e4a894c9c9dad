"""Bytes that a client sends before its last request is answered.

They are kept as they came, not as parsed requests: a request of 27 bytes takes some 2 KiB as objects. The next one is
parsed when its turn comes.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 16_384
"""Bytes that are parsed at a time. The reader copies what follows a request, so without a bound the cost of a read
would grow with its square."""


class Ahead:
    """What came ahead and is not parsed yet. `since` is when; `has_ended`: the client has closed its side after it."""

    __slots__ = ("_at", "_data", "has_ended", "since")

    def __init__(self, data: bytes, since: float) -> None:
        self._data = data
        self._at = 0  # up to here it has been parsed
        self.since = since
        self.has_ended = False

    def __len__(self) -> int:
        return len(self._data) - self._at

    def add(self, data: bytes) -> None:
        """More has come."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def take(self) -> bytes:
        """Remove and return the next `WINDOW` bytes, or all if there are fewer."""
        at, size = self._at, len(self._data)
        self._at = min(at + WINDOW, size)
        return self._data if at == 0 and size <= WINDOW else self._data[at : self._at]

    def put_back(self, size: int) -> None:
        """The last `size` bytes that were taken have not been parsed."""
        self._at -= size

    def take_all(self) -> bytes:
        """Remove and return all."""
        data, self._data, self._at = self._data[self._at :], b"", 0
        return data
