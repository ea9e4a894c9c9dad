"""Outgoing bodies of concurrent streams, in turns.

The library sends the body of one stream to its end before it begins with that of the next one (RFC 9218, without
`incremental`), so that one long body would block all others. Here it gets a frame of each at a time.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from balancer.http2.events import Fields
from balancer.http2.library import LibraryError
from balancer.http2.limits import LONGEST_FRAME


class Backlog:
    """Parts of a body in order. `size` in bytes; `is_last`: they end the message, with `trailers` if not None."""

    __slots__ = ("_offset", "_parts", "is_last", "size", "trailers")

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._offset = 0
        self.size = 0
        self.is_last = False
        self.trailers: Fields | None = None

    def add(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self.size += len(data)

    def take(self) -> bytes:
        """Remove and return what fits into a frame, of one part."""
        if not self._parts:
            return b""
        part, at = self._parts[0], self._offset
        end = at + LONGEST_FRAME
        if end >= len(part):
            self._parts.popleft()
            self._offset = 0
            piece = part[at:] if at else part
        else:
            self._offset = end
            piece = part[at:end]
        self.size -= len(piece)
        return piece


class Bodies:
    """Bodies of one connection. `waiting`: streams with a part that the library does not have yet. `given`: bytes that
    it has got, ever."""

    def __init__(self, session: Any) -> None:
        self.waiting: dict[int, Backlog] = {}
        self.given = 0
        self._session = session

    def send(self, stream_id: int, data: bytes, is_last: bool) -> None:
        """Send a part of a body. It is given to the library at once unless another part is before it there."""
        backlog = self.waiting.get(stream_id)
        if backlog is None:
            if self._is_next(stream_id, len(data)):
                self._give(stream_id, data, is_last)
                return
            backlog = self.waiting[stream_id] = Backlog()
        backlog.add(data)
        backlog.is_last = is_last

    def _is_next(self, stream_id: int, size: int) -> bool:
        if not size:
            return True
        session = self._session
        queued: int = session.queued(stream_id) if size <= LONGEST_FRAME else session.queued_in_all
        return queued == 0

    def _give(self, stream_id: int, data: bytes, is_last: bool) -> None:
        try:
            self._session.send_data(stream_id, data, is_last)
        except LibraryError:  # the stream has ended
            self.waiting.pop(stream_id, None)
            return
        self.given += len(data)

    def send_trailers(self, stream_id: int, fields: Fields) -> None:
        """End a message with trailers."""
        backlog = self.waiting.get(stream_id)
        if backlog is not None:
            backlog.trailers = fields
            return
        try:
            self._session.send_trailers(stream_id, fields)
        except LibraryError:
            return

    def take_turns(self, limit: int | None = None) -> bytes:
        """Frame the bodies that wait, a frame of each at a time, until the connection's window is used up, or about
        `limit` bytes are made.
        """
        session, waiting = self._session, self.waiting
        made: list[bytes] = []
        size, has_given = 0, True
        while has_given and waiting and session.window > 0 and (limit is None or size < limit):
            has_given = False
            for stream_id, backlog in list(waiting.items()):
                if not session.queued(stream_id):  # else it waits for the stream's window
                    self._give_turn(stream_id, backlog)
                    has_given = True
            made.append(session.send())
            size += len(made[-1])
        return b"".join(made)

    def _give_turn(self, stream_id: int, backlog: Backlog) -> None:
        data = backlog.take()
        if backlog.size:
            self._give(stream_id, data, False)
            return
        del self.waiting[stream_id]
        self._give(stream_id, data, backlog.is_last)
        if backlog.trailers is not None:
            self.send_trailers(stream_id, backlog.trailers)

    @property
    def size(self) -> int:
        """Bytes that the library does not have yet."""
        return sum(backlog.size for backlog in self.waiting.values())

    def unsent(self, stream_id: int) -> int:
        """Return how many bytes of a body are not framed yet."""
        size: int = self._session.queued(stream_id)
        backlog = self.waiting.get(stream_id)
        return size if backlog is None else size + backlog.size
