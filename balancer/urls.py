"""Parts of URLs in the form in which they are compared: paths (RFC 3986 § 6.2.2) and hosts. Pure: no I/O.

A worker may take `/a/../admin`, `/%61dmin` and `//admin` for `/admin`, so a route for `/admin` must get them too.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Final

_SLASHES: Final = re.compile(rb"/{2,}")
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")

_DIGITS: Final = "0123456789ABCDEFabcdef"
_DECODED: Final = {
    f"%{high}{low}".encode(): bytes((code,))
    if (code := int(high + low, 16)) in _UNRESERVED
    else b"%%%02X" % code
    for high in _DIGITS
    for low in _DIGITS
} | {b"%": b"%25"}
"""Each code of a byte, in every case, and what it is replaced by; a `%` that begins none is data. A function called for
each of the 2,700 codes that a path may have would take a millisecond."""

_find_dots: Final = re.compile(rb"/\.\.?(?:/|\Z)").search

_split_codes: Final = re.compile(rb"(%(?:[0-9A-Fa-f]{2})?)").split

MAX_HOST_BYTES: Final = 255
"""Longest name that DNS carries (RFC 1035 § 2.3.4), and that RFC 3986 § 3.2.2 asks producers of URLs to keep to."""

MAX_AUTHORITY_BYTES: Final = MAX_HOST_BYTES + len(":65535")

_AUTHORITY: Final = re.compile(
    rb"(\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)(?::[0-9]*)?"
)
"""RFC 3986 § 3.2.2, without userinfo (RFC 9110 § 4.2.4) and never empty (§ 4.2.1)."""


def is_authority(authority: bytes) -> bool:
    """Return whether `authority` is host or host:port, with a host of at most `MAX_HOST_BYTES`."""
    if len(authority) > MAX_AUTHORITY_BYTES:
        return False
    match = _AUTHORITY.fullmatch(authority)
    return match is not None and match.end(1) <= MAX_HOST_BYTES


def normalized(path: bytes) -> bytes:
    """Return the path with unreserved characters decoded, without dot segments, and with single slashes.

    An encoded slash stays encoded: it is data of its segment.
    """
    return resolved(decoded(path))


def decoded(path: bytes) -> bytes:
    """Return the path with unreserved characters decoded, and the codes of others in capitals."""
    if b"%" not in path:
        return path
    parts = _split_codes(path)
    return b"".join(map(_DECODED.get, parts, parts))


def resolved(path: bytes) -> bytes:
    """Return the path without dot segments, and with single slashes."""
    if b"//" in path:
        path = _SLASHES.sub(b"/", path)
    return _without_dots(path) if has_dots(path) else path


def has_dots(path: bytes) -> bool:
    """Return whether a segment of the path is `.` or `..`."""
    return b"/." in path and _find_dots(path) is not None


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
