"""HTTP/2 engine of a connection to a worker, and its messages in HTTP/1.1 (RFC 9113 § 8.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from balancer.errors import MalformedResponse, StreamRefused, StreamReset, UpstreamError
from balancer.http.h1.field_list import REASONS, FieldList, Fields
from balancer.http.h2.engine import Engine
from balancer.http.h2.events import REFUSED_STREAM, RESET, Event, name_of
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


_COLON: Final = ord(":")


def head_fields(outline: FieldList, scheme: bytes, origin: bytes) -> Fields:
    """Return a request's head as HTTP/2 fields; `origin` replaces a missing Host."""
    fields: Fields = [
        (b":method", outline.method),
        (b":scheme", scheme),
        (b":authority", outline.authority or origin),
        (b":path", outline.target),
    ]
    fields += outline.fields
    if outline.takes_trailers:
        fields.append((b"te", b"trailers"))
    return fields


def response_head(fields: Iterable[tuple[bytes, bytes]]) -> tuple[int, bytes]:
    """Return the status and the head in HTTP/1.1 without its empty line, as `head_of` does. Raises
    `MalformedResponse`."""
    status = b""
    lines = [b""]
    for name, value in fields:
        if name[0] == _COLON:
            status = value
        elif name != b"te":
            lines.append(b"%b: %b\r\n" % (name, value))
    if len(status) != 3 or not status.isdigit():
        raise MalformedResponse("a :status that is no status")
    code = int(status)
    lines[0] = b"HTTP/1.1 %b %b\r\n" % (status, REASONS.get(code, b""))
    return code, b"".join(lines)


def error_of_reset(code: int, by_worker: bool, reason: str) -> UpstreamError:
    """Return the error that the reset of a stream means for its request (RFC 9113 § 8.7). `reason`: why the connection
    ends, if it does."""
    if code == REFUSED_STREAM:
        if by_worker:
            return StreamRefused("the worker refused the stream (REFUSED_STREAM)")
        return StreamRefused(f"the connection ended without this request ({reason})")
    if by_worker:
        return StreamReset(f"the worker reset the stream ({name_of(code)})", code)
    return MalformedResponse(f"HTTP/2: the response violates the protocol ({name_of(code)})")
