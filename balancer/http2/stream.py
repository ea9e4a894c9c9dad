"""One request on a connection of HTTP/2: what of its body waits for the worker's window, and what of the response the
worker is not yet told was taken.

Rule of this file: it decides when; what is written and how is the connection's (`http2.py`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from balancer.http1.field_list import fields_of
from balancer.http2.settings import STREAM_WINDOW

if TYPE_CHECKING:
    from balancer.http2.connection import Http2Session
    from balancer.upstream.stream import UpstreamStream

HIGH, LOW = 65_536, 16_384
"""Bytes of a body that wait here before whoever sends it is paused, and until it goes on: asyncio's own measures."""


class Http2Stream:
    """`unsent` are bytes of the request's body that wait for room, `is_over`: nothing more is to be heard or said."""

    __slots__ = (
        "_has_sent_end",
        "_is_ending",
        "_is_held",
        "_is_paused",
        "_pending",
        "_session",
        "_trailers",
        "_unreturned",
        "upstream_stream",
        "id",
        "is_over",
        "unsent",
    )

    def __init__(
        self, session: Http2Session, upstream_stream: UpstreamStream, stream_id: int, *, has_body: bool
    ) -> None:
        self._session = session
        self.upstream_stream = upstream_stream
        self.id = stream_id
        self.is_over = False
        self.unsent = 0
        self._pending: deque[bytes] = deque()
        self._trailers = b""
        self._is_ending = False  # the body has come whole
        self._has_sent_end = not has_body
        self._is_held = False  # whoever sends the body was told to wait
        self._is_paused = False
        self._unreturned = 0  # bytes that came while the client was slow

    # --- the request

    def send(self, data: bytes) -> None:
        """Bytes of the body."""
        if self.is_over:
            return
        self._pending.append(data)
        self.unsent += len(data)
        self._session.pump(self)
        if self.unsent > HIGH and not self._is_held:
            self._is_held = True
            self.upstream_stream.paused()

    def send_end(self, trailers: bytes) -> None:
        """The body is whole."""
        self._is_ending, self._trailers = True, trailers
        self._session.pump(self)

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to send."""
        return not self.is_over and (bool(self._pending) or (self._is_ending and not self._has_sent_end))

    def next_frame(self, room: int) -> bool:
        """Send what fits into `room` bytes, one frame; False where nothing does."""
        data = b""
        if self._pending:
            if room <= 0:
                return False
            data = self._pending.popleft()
            if len(data) > room:
                self._pending.appendleft(data[room:])
                data = data[:room]
            self.unsent -= len(data)
        is_last = self._is_ending and not self._pending
        if data or not self._trailers:
            self._session.send_data(self.id, data, is_last=is_last and not self._trailers)
        if is_last:
            self._has_sent_end = True
            if self._trailers:
                fields = [(name.lower(), value) for name, value in fields_of(self._trailers)]
                self._session.send_trailers(self.id, fields)
        return True

    def went_out(self) -> None:
        """Less waits here than did."""
        if self._is_held and self.unsent <= LOW:
            self._is_held = False
            self.upstream_stream.resumed()

    # --- the response

    def took(self, size: int) -> None:
        """So many bytes of the window are used; they are given back unless the client is slow."""
        self._unreturned += size
        if not self._is_paused:
            self._tell()

    def pause(self) -> None:
        """The client cannot keep up."""
        self._is_paused = True

    def resume(self) -> None:
        """It has caught up."""
        self._is_paused = False
        self._tell()

    def _tell(self) -> None:
        """A quarter of the window at a time: each costs a frame."""
        if self._unreturned >= STREAM_WINDOW // 4 and not self.is_over:
            self._session.give_window(self.id, self._unreturned)
            self._unreturned = 0

    def cancel(self) -> None:
        """Tell the worker, if it has not ended."""
        if not self.is_over or self.unsent:
            self.over()
            self._session.reset(self)

    def over(self) -> None:
        """Nothing more is to be heard or said."""
        self.is_over = True
        self._pending.clear()
        self.unsent = 0
