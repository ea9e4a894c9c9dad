"""Chunked framing of outgoing bodies: chunks, the last chunk, and trailers.

Trailers that concern framing, routing, authentication or content handling are removed (RFC 9110 § 6.5.1): a receiver
that merges trailers into the head would otherwise let a body override it.
"""

from __future__ import annotations

from typing import Final

from balancer.http.h1.fields import CERTIFICATE, FRAMING, HOP_BY_HOP, any_of, cut, found, lines_of

_FORBIDDEN: Final = lines_of(
    any_of(
        (
            *HOP_BY_HOP,
            *FRAMING,
            *["host", "trailer", "expect", "max-forwards", "range", "if-*", "cache-control", "pragma"],
            *["authorization", "proxy-*", "www-authenticate", "cookie", "set-cookie"],
            *["content-encoding", "content-type", "content-range"],
            *CERTIFICATE,
            *["forwarded", "x-forwarded-*", "x-real-ip", "x-request-*", "via"],
            *["location", "vary", "date", "age", "expires", "retry-after"],
        ),
        as_in_cgi=True,
    )
)


def passing_trailers(block: bytes) -> bytes:
    """Return `block` without the fields forbidden in trailers; b"" if none is left."""
    if not block:
        return b""
    block = cut(block, [span for _, _, span in found(_FORBIDDEN, block)])
    return block if block != b"\r\n" else b""


def chunk(data: bytes) -> bytes:
    """Return non-empty `data` as a chunk (RFC 9112 § 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(trailers: bytes) -> bytes:
    """Return the end of a chunked body; `trailers` is a block or b""."""
    return b"0%b\r\n" % (passing_trailers(trailers) or b"\r\n")
