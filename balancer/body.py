"""Where a request's body ends among the bytes that a client sends.

Rule of this file: llhttp decides where the body ends; this only sees to it that no feed goes beyond that point, so
that the next request's head begins a feed of its own and its bytes are known.
"""

from __future__ import annotations

from balancer.heads import END_OF_HEAD


class BodyBounds:
    """A body of `length` bytes, or, where that is 0, a chunked one: whatever its trailers, it ends in an empty line."""

    __slots__ = ("_before", "_left")

    def __init__(self, length: int) -> None:
        self._left = length
        self._before = b""  # the last three bytes of what was fed

    def feedable(self, data: bytes) -> int:
        """How many bytes of `data` may be fed at once; they count as fed."""
        if not self._left:
            return self._next_empty_line(data)
        size = min(self._left, len(data))
        self._left -= size
        return size

    def _next_empty_line(self, data: bytes) -> int:
        """Where the first CRLF CRLF ends, which may have begun in the last feed; else where `data` ends."""
        before = self._before
        at = (before + data[:3]).find(END_OF_HEAD)
        if at >= 0:
            at += len(END_OF_HEAD) - len(before)
        else:
            at = data.find(END_OF_HEAD)
            at = at + len(END_OF_HEAD) if at >= 0 else len(data)
        self._before = (before + data[max(0, at - 3) : at])[-3:]
        return at
