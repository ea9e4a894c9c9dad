"""HTTP/2 engine of a connection to a worker."""

from __future__ import annotations

from collections.abc import Iterable

from balancer.http.h2.engine import Engine
from balancer.http.h2.events import REFUSED_STREAM, RESET, Event
from balancer.http.h2.library import LibraryError
from balancer.http.h2.limits import Http2Limits
from balancer.http.h2.sendable import sendable


class CannotOpenStream(Exception):
    """The connection takes no further request."""


class ClientEngine(Engine):
    """HTTP/2 to a worker: events HEAD, OVERSIZED, INTERIM, DATA, TRAILERS, RESET, SETTINGS, PONG, GOAWAY, CLOSED."""

    def __init__(self, limits: Http2Limits) -> None:
        super().__init__(False, limits, {2: 0})

    def _settle_resets(self, reset: set[int]) -> None:
        """Put the streams that a GOAWAY leaves out into their order; the library reports them in a random one."""
        if self.is_leaving and len(reset) > 1:
            refused = iter(sorted(event for event in self._events if _is_left_out(event)))
            self._events = [next(refused) if _is_left_out(event) else event for event in self._events]

    def request(self, fields: Iterable[tuple[bytes, bytes]], *, is_last: bool) -> int:
        """Send the head of a request, and return its stream id; `is_last` if it has no body.

        Raises `UnsendableFields`, and `CannotOpenStream` if the connection is going away.
        """
        made = sendable(fields)
        if self.is_closed:
            raise CannotOpenStream("the connection is closed")
        try:
            stream_id: int = self._session.request(made, is_last)
        except LibraryError as error:
            raise CannotOpenStream(str(error)) from error
        self._last_id = stream_id
        self._open[stream_id] = 0
        return stream_id


def _is_left_out(event: Event) -> bool:
    """Return whether a stream has ended because a GOAWAY left it out."""
    kind, _, code, by_peer = event
    return kind == RESET and code == REFUSED_STREAM and not by_peer
