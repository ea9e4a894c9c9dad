"""Parts of URLs in the form in which they are compared: paths (RFC 3986 § 6.2.2) and hosts. Pure: no I/O.

A worker may take `/a/../admin`, `/%61dmin` and `//admin` for `/admin`, so a route for `/admin` must get them too.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Final

_ENCODED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_SLASHES: Final = re.compile(rb"/{2,}")
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def normalized(path: bytes) -> bytes:
    """Return the path with unreserved characters decoded, without dot segments, and with single slashes.

    An encoded slash stays encoded: it is data of its segment.
    """
    if b"%" not in path and b"//" not in path and b"/." not in path:
        return path
    path = _SLASHES.sub(b"/", _ENCODED.sub(_decoded, path))
    return _without_dots(path) if b"/." in path else path


def _decoded(match: re.Match[bytes]) -> bytes:
    code = int(match[1], 16)
    return bytes((code,)) if code in _UNRESERVED else match[0].upper()


def _without_dots(path: bytes) -> bytes:
    """Return an absolute path without its segments `.` and `..` (RFC 3986 § 5.2.4)."""
    kept: list[bytes] = []
    segments = path.split(b"/")[1:]
    for segment in segments:
        if segment == b"..":
            if kept:
                kept.pop()
        elif segment != b".":
            kept.append(segment)
    if segments[-1] in (b".", b".."):
        kept.append(b"")
    return b"/" + b"/".join(kept)


def host_in(authority: bytes) -> bytes:
    """Return the host without its port and final dot, in lower case; an IPv6 address keeps its brackets, and is
    compressed (RFC 5952)."""
    if authority.startswith(b"["):
        host = authority[: authority.find(b"]") + 1].lower()
        try:
            return b"[%b]" % IPv6Address(host[1:-1].decode("latin-1")).compressed.encode()
        except ValueError:
            return host
    return authority.partition(b":")[0].lower().rstrip(b".")
