"""A reader of messages for clients and workers, independent of the balancer's.

It accepts only what the simulation sends. Bodies are compared with the expected ones as they arrive, and not kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import Final

CHUNKED: Final = -1
UNTIL_CLOSE: Final = -2

LONGEST: Final = 300_000
"""Maximum bytes of a body."""

_BLOCK: Final = memoryview(Random(7).randbytes(2 * LONGEST))


class Violation(AssertionError):
    """An invariant does not hold."""


def content(number: int, turn: int, size: int) -> bytes:
    """The body of request `number` (turn 0), or of the response to its n-th execution."""
    at = (number * 7919 + turn * 104_729) % LONGEST
    return bytes(_BLOCK[at : at + size])


class Content:
    """A body as it arrives. Raises `Violation` at the first byte that differs."""

    __slots__ = ("_at", "_name", "size")

    def __init__(self, number: int, turn: int) -> None:
        self._name = (number, turn)
        self._at = (number * 7919 + turn * 104_729) % LONGEST
        self.size = 0

    def add(self, piece: bytes) -> None:
        """Compare the next bytes."""
        at = self._at + self.size
        if _BLOCK[at : at + len(piece)] != piece:
            raise Violation(
                f"the body of {self._name} is not its own, within {len(piece)} bytes from {self.size}"
            )
        self.size += len(piece)


class Reader(ABC):
    """Splits bytes into heads and bodies. `is_amid`: a message has begun and not ended."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0  # of the body, or of the chunk
        self._is_in_body = self._is_chunked = False
        self._awaits = ""  # of a chunked body: its "size", "data", "end" or "trailer"

    @abstractmethod
    def head(self, head: bytes) -> int:
        """Handle a head, up to the end of its last line; return its body's length, or how the body ends."""

    @abstractmethod
    def piece(self, data: bytes) -> None:
        """Handle bytes of the body."""

    @abstractmethod
    def whole(self) -> None:
        """Handle the end of the message."""

    def trailer(self, line: bytes) -> None:
        """Handle a line behind a chunked body."""
        raise Violation(f"a trailer: {line!r}")

    @property
    def is_amid(self) -> bool:
        return self._is_in_body or bool(self._rest)

    def feed(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at = 0
        while at < len(data):
            step = self._body(data, at) if self._is_in_body else self._head(data, at)
            if step < 0:
                break
            at = step
        self._rest = data[at:]

    def _head(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            return -1
        self._left = size = self.head(data[at : end + 2])
        self._is_in_body = size != 0
        self._is_chunked = size == CHUNKED
        self._awaits = "size"
        if not size:
            self.whole()
        return end + 4

    def _body(self, data: bytes, at: int) -> int:
        if self._is_chunked and self._awaits != "data":
            return self._chunk_line(data, at)
        size = min(self._left, len(data) - at) if self._left != UNTIL_CLOSE else len(data) - at
        self.piece(data[at : at + size])
        if self._left != UNTIL_CLOSE:
            self._left -= size
            if not self._left:
                self._awaits = "end"
                if not self._is_chunked:
                    self._end()
        return at + size

    def _chunk_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at)
        if end < 0:
            return -1
        line = data[at:end]
        if self._awaits == "size":
            self._left = int(line, 16)
            self._awaits = "data" if self._left else "trailer"
        elif line and self._awaits == "trailer":
            self.trailer(line)
        elif line:
            raise Violation(f"no end of a chunk: {line!r}")
        elif self._awaits == "end":
            self._awaits = "size"
        else:
            self._end()
        return end + 2

    def _end(self) -> None:
        self._is_in_body = False
        self.whole()
