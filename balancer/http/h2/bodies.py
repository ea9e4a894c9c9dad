"""Outgoing bodies of concurrent streams, in turns.

The library sends the body of one stream to its end before it begins with that of the next one (RFC 9218, without
`incremental`), so that one long body would block all others. Here it gets a frame of each at a time.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from balancer.http.h1.field_list import Fields
from balancer.http.h2.library import LibraryError
from balancer.http.h2.limits import LONGEST_FRAME


class Backlog:
    """Parts of a body in order. `size` in bytes; `is_last`: they end the message, with `trailers` if not None.

    A part is cut into frames when it is added: cut later, it would be kept whole until its last byte is sent.
    """

    __slots__ = ("_frames", "is_last", "size", "trailers")

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self.size = 0
        self.is_last = False
        self.trailers: Fields | None = None

    def add(self, data: bytes) -> None:
        for at in range(0, len(data), LONGEST_FRAME):
            self._frames.append(data[at : at + LONGEST_FRAME])
        self.size += len(data)

    def take(self) -> bytes:
        """Remove and return what fits into a frame, of one part."""
        if not self._frames:
            return b""
        piece = self._frames.popleft()
        self.size -= len(piece)
        return piece


class Bodies:
    """Bodies of one connection. `waiting`: streams with a part that the library does not have yet. `given` and `parts`:
    bytes that it has got, ever, and in how many parts."""

    def __init__(self, session: Any) -> None:
        self.waiting: dict[int, Backlog] = {}
        self.given = self.parts = 0
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
        self.parts += 1

    def send_trailers(self, stream_id: int, fields: Fields) -> None:
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
        `limit` bytes are made. The next call begins with the stream after the last one.
        """
        session, waiting = self._session, self.waiting
        made: list[bytes] = []
        size, has_given = 0, True
        while has_given and waiting and session.window > 0 and (limit is None or size < limit):
            has_given = False
            most = session.window if limit is None else limit - size
            for stream_id, backlog in list(waiting.items()):
                if not session.queued(stream_id):  # else it waits for the stream's window
                    most -= self._give_turn(stream_id, backlog)
                    has_given = True
                    if most <= 0:
                        break
            made.append(session.send())
            size += len(made[-1])
        return b"".join(made)

    def _give_turn(self, stream_id: int, backlog: Backlog) -> int:
        """Give the library a frame of a body; returns its size. The stream's next turn is behind those of others."""
        data = backlog.take()
        del self.waiting[stream_id]
        if backlog.size:
            self.waiting[stream_id] = backlog
            self._give(stream_id, data, False)
            return len(data)
        self._give(stream_id, data, backlog.is_last)
        if backlog.trailers is not None:
            self.send_trailers(stream_id, backlog.trailers)
        return len(data)

    def unsent(self, stream_id: int) -> int:
        """Return how many bytes of a body are not framed yet."""
        size: int = self._session.queued(stream_id)
        backlog = self.waiting.get(stream_id)
        return size if backlog is None else size + backlog.size

    @property
    def waiting_size(self) -> int:
        """Bytes of all bodies that the library does not have yet."""
        return sum(backlog.size for backlog in self.waiting.values())
