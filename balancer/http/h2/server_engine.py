"""HTTP/2 engine of a connection from a client."""

from __future__ import annotations

from collections.abc import Iterable

from balancer.http.h1.field_list import Fields
from balancer.http.h2.engine import Engine
from balancer.http.h2.events import NO_ERROR, OVERSIZED, RESET
from balancer.http.h2.library import LibraryError
from balancer.http.h2.limits import LEAVING, LINGER_TICKS, LONGEST_LINGER, Http2Limits
from balancer.http.h2.sendable import sendable


class ServerEngine(Engine):
    """HTTP/2 from a client: events HEAD, OVERSIZED, DATA, TRAILERS, RESET, CLOSED.

    `has_discarded`: the client may still be sending a request that was answered early.
    """

    def __init__(self, limits: Http2Limits, *, connect: bool = False) -> None:
        """`connect`: offer extended CONNECT (RFC 8441)."""
        super().__init__(True, limits, {3: limits.streams, 8: int(connect)})
        self.has_discarded = False

    def _settle_resets(self, reset: set[int]) -> None:
        """Remove the events of streams that the client began and ended early in the same read."""
        hidden = {event[1] for event in self._events if event[0] <= OVERSIZED and event[1] in reset}
        if hidden:
            self._events = [event for event in self._events if event[1] not in hidden or event[0] > RESET]

    def interim(self, stream_id: int, fields: Iterable[tuple[bytes, bytes]]) -> None:
        """Send an interim response (1xx). Raises `UnsendableFields`."""
        made = sendable(fields)
        if not self.is_closed:
            try:
                self._session.interim(stream_id, made)
            except LibraryError:
                return

    def respond(self, stream_id: int, fields: Iterable[tuple[bytes, bytes]], *, is_last: bool) -> None:
        """Send the head of a response; `is_last` if it has no body. Raises `UnsendableFields`."""
        self.respond_checked(stream_id, sendable(fields), b"", is_last=is_last)

    def respond_checked(self, stream_id: int, made: Fields, data: bytes, *, is_last: bool) -> None:
        """As `respond`, with the result of `sendable`, and with the first bytes of the body, a frame at most."""
        if not self.is_closed:
            try:
                self._session.respond(stream_id, made, data, is_last)
            except LibraryError:
                return
            if data:
                self._bodies.given += len(data)
                self._bodies.parts += 1

    def discard(self, stream_id: int) -> None:
        """Drop what else comes of a request; called after the last part of its response. A client may read nothing
        before it has sent all, and drop the response of a stream that is reset: it may go on, and gets a reset only
        when it has stopped amid the request.
        """
        if stream_id in self._open:
            self._unwanted[stream_id] = [0, 0]
            self.has_discarded = True
            self.acknowledge(stream_id, self._open[stream_id])

    def leave(self) -> None:
        """Go away without losing a request (§ 6.8): a first GOAWAY that names no stream, and after a round trip a
        second one, beyond which no stream is served. CLOSED comes when all streams have ended."""
        if not (self.is_closed or self.is_leaving):
            self.is_leaving = True
            try:
                self._session.announce_goaway()
                self._session.ping(LEAVING)
            except LibraryError:  # it has ended, by a GOAWAY that waits for the transport
                return

    def tick(self) -> None:
        """Begin the limits on floods anew, and reset the streams of `discard` whose client has stopped: before the
        end of the answer is out, a reset would cut it off (§ 8.1)."""
        super().tick()
        session = self._session
        for stream_id, ticks in list(self._unwanted.items()):
            quiet, in_all = ticks
            try:
                window = min(session.window, session.stream_window(stream_id))
            except LibraryError:
                self._forget(stream_id)
                continue
            # Without window, or while the transport is full, the end of the stream may wait to be framed.
            if window > 0 and not (self.is_blocked or self.unsent(stream_id)):
                if quiet < LINGER_TICKS and in_all < LONGEST_LINGER:
                    self._unwanted[stream_id] = [quiet + 1, in_all + 1]
                else:
                    self.reset(stream_id, NO_ERROR)
