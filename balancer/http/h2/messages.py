"""Convert requests and responses between HTTP/1.1 and HTTP/2 (RFC 9113 § 8.3), for connections to workers. Pure.

The engine validates all fields, incoming and outgoing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from balancer.errors import MalformedResponse, StreamRefused, StreamReset, UpstreamError
from balancer.http.h1.field_list import BODILESS, REASONS, FieldList
from balancer.http.h2.events import REFUSED_STREAM, Fields, name_of

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
    has_length = False
    lines = [b""]
    for name, value in fields:
        if name[0] == _COLON:
            status = value
        elif name != b"te":
            if name == b"content-length":
                has_length = True
            lines.append(b"%b: %b\r\n" % (name, value))
    if len(status) != 3 or not status.isdigit():
        raise MalformedResponse("a :status that is no status")
    code = int(status)
    lines[0] = b"HTTP/1.1 %b %b\r\n" % (status, REASONS.get(code, b""))
    if not (has_length or code < 200 or code in BODILESS):
        lines.append(b"Transfer-Encoding: chunked\r\n")
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
