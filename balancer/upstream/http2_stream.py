"""HTTP/2 stream: send buffer of the request body, and flow-control credit of the response.

It decides when to send and when to return window; `connection.py` writes the frames.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from balancer.http1.field_list import fields_of
from balancer.http2.settings import STREAM_WINDOW

if TYPE_CHECKING:
    from balancer.upstream.http2_connection import Http2Session
    from balancer.upstream.stream import UpstreamStream

HIGH, LOW = 65_536, 16_384
"""High and low water marks of the request body's buffer, in bytes: pause and resume the sender. asyncio's own
values."""


class Http2Stream:
    """A stream of an `Http2Session`.

    `unsent` is the number of buffered bytes of the request body; `is_over`: no more events or data pass.
    """

    __slots__ = (
        "_has_sent_end",
        "_is_ending",
        "_is_held",
        "_is_paused",
        "_pending",
        "_session",
        "_trailers",
        "_unreturned",
        "id",
        "is_over",
        "unsent",
        "upstream_stream",
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
        self._is_ending = False  # the body has been received whole
        self._has_sent_end = not has_body
        self._is_held = False  # the sender of the body is paused
        self._is_paused = False
        self._unreturned = 0  # received bytes whose window is not returned yet

    # --- the request

    def send(self, data: bytes) -> None:
        """Send or buffer bytes of the request body; pauses the sender above the high-water mark."""
        if self.is_over:
            return
        self._pending.append(data)
        self.unsent += len(data)
        self._session.pump(self)
        if self.unsent > HIGH and not self._is_held:
            self._is_held = True
            self.upstream_stream.paused()

    def send_end(self, trailers: bytes) -> None:
        """End the request body; `trailers` is a block of fields or b""."""
        self._is_ending, self._trailers = True, trailers
        self._session.pump(self)

    @property
    def is_waiting(self) -> bool:
        """Return whether there is something to send."""
        return not self.is_over and (bool(self._pending) or (self._is_ending and not self._has_sent_end))

    def next_frame(self, room: int) -> bool:
        """Send one frame of at most `room` bytes. Returns False if nothing can be sent."""
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
        """Resume the sender if the buffer has shrunk to the low-water mark."""
        if self._is_held and self.unsent <= LOW:
            self._is_held = False
            self.upstream_stream.resumed()

    # --- the response

    def took(self, size: int) -> None:
        """Account for `size` received bytes; their window is returned unless the client is slow."""
        self._unreturned += size
        if not self._is_paused:
            self._tell()

    def pause(self) -> None:
        """Withhold window: the client is slow."""
        self._is_paused = True

    def resume(self) -> None:
        """Stop withholding window, and return what has accumulated."""
        self._is_paused = False
        self._tell()

    def _tell(self) -> None:
        """Return window, a quarter of it at a time: each update costs a frame."""
        if self._unreturned >= STREAM_WINDOW // 4 and not self.is_over:
            self._session.give_window(self.id, self._unreturned)
            self._unreturned = 0

    def cancel(self) -> None:
        """Reset the stream if it has not ended."""
        if not self.is_over or self.unsent:
            self.over()
            self._session.reset(self)

    def over(self) -> None:
        """End the stream locally and drop unsent data."""
        self.is_over = True
        self._pending.clear()
        self.unsent = 0
