"""HTTP/2 stream: the request's body with back-pressure, and flow-control credit of the response.

The engine keeps what the worker's window does not take yet; the sender is paused above the high-water mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from balancer.http.h1.field_list import fields_of
from balancer.http.h2.events import CANCEL
from balancer.http.h2.limits import STREAM_WINDOW
from balancer.http.h2.sendable import UnsendableFields
from balancer.upstream.stream import UpstreamStream

if TYPE_CHECKING:
    from balancer.upstream.http2.connection import Http2Session

HIGH_WATER_BYTES: Final = 65_536
LOW_WATER_BYTES: Final = 16_384
"""High and low water marks of the request body's buffer, in bytes: pause and resume the sender. asyncio's own
values."""


class UpstreamHttp2Stream:
    """A stream of an `Http2Session`; `is_over`: no more events or data pass."""

    def __init__(
        self, session: Http2Session, upstream_stream: UpstreamStream, stream_id: int, has_body: bool
    ) -> None:
        self._session = session
        self.upstream_stream = upstream_stream
        self.id = stream_id
        self.has_body = has_body
        self.is_over = False
        self.is_touched = False  # by the read being parsed
        self._is_held = False  # the sender of the body is paused
        self._is_paused = False
        self._unreturned = 0  # received bytes whose window is not returned yet

    # --- the request

    @property
    def unsent(self) -> int:
        if not self.has_body or self.is_over:
            return 0
        return self._session.engine.unsent(self.id)

    def send(self, data: bytes) -> None:
        """Send or buffer bytes of the request body; pauses the sender above the high-water mark."""
        if self.is_over:
            return
        session = self._session
        session.engine.send_data(self.id, data, is_last=False)
        if self.unsent <= HIGH_WATER_BYTES:
            session.flush_soon()
            return
        session.flush()
        if not self._is_held and self.unsent > HIGH_WATER_BYTES:
            self._is_held = True
            session.held[self] = None
            self.upstream_stream.paused()

    def send_end(self, trailers: bytes) -> None:
        """End the request body; `trailers` is a block of fields or b""."""
        if self.is_over:
            return
        session = self._session
        if trailers:
            try:
                session.engine.send_trailers(self.id, fields_of(trailers))
            except UnsendableFields:
                session.engine.send_data(self.id, b"", is_last=True)
        else:
            session.engine.send_data(self.id, b"", is_last=True)
        session.flush_soon()

    def resume_sender(self) -> bool:
        """Resume the sender if the buffer has shrunk to the low-water mark; return whether it is not held any more."""
        if self._is_held and self.unsent <= LOW_WATER_BYTES:
            self._is_held = False
            self.upstream_stream.resumed()
        return not self._is_held

    # --- the response

    def took(self, size: int) -> None:
        """Account for `size` received bytes; their window is returned unless the client is slow."""
        self._unreturned += size
        if not self._is_paused:
            self._return_window()

    def pause(self) -> None:
        """Withhold window: the client is slow."""
        self._is_paused = True

    def resume(self) -> None:
        """Stop withholding window, and return what has accumulated."""
        self._is_paused = False
        if self._return_window():
            self._session.flush_soon()

    def _return_window(self) -> bool:
        """Return window, a quarter of it at a time: each call has a price."""
        if self._unreturned < STREAM_WINDOW // 4 or self.is_over:
            return False
        self._session.engine.acknowledge(self.id, self._unreturned)
        self._unreturned = 0
        return True

    def cancel(self) -> None:
        """Reset the stream if it has not ended."""
        if not self.is_over:
            self.is_over = True
            self._session.reset(self, CANCEL)
