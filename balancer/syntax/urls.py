"""Parts of URLs in the form in which they are compared: paths (RFC 3986 § 6.2.2) and hosts. Pure: no I/O.

A worker may take `/a/../admin`, `/%61dmin` and `//admin` for `/admin`, so a route for `/admin` must get them too.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import SplitResult, urlsplit

_SLASHES: Final = re.compile(rb"/{2,}")
_DECODED: Final = {
    b"%%%b" % digits: bytes((code,))
    for code in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
    for digits in (b"%02X" % code, b"%02x" % code)
} | {b"%": b"%25"}
"""Codes of unreserved characters, and what they are replaced by; a `%` that begins no code is data."""

_find_dots: Final = re.compile(rb"/\.\.?(?![^/])").search
_split_at_dots: Final = re.compile(rb"/(\.\.?)(?![^/])").split

_split_at_codes: Final = re.compile(
    rb"(%(?:2[DEde]|3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa]|5[Ff]|7[Ee])|%(?![0-9A-Fa-f]{2})"
    rb"|%(?:[0-9A-F][a-f]|[a-f][0-9A-Fa-f])(?:%[89A-Fa-f][0-9A-Fa-f])*)"
).split
"""Splits at the keys of `_DECODED`, and at codes with a small letter together with those of other than ASCII behind."""

MAX_PARTS: Final = 64
"""Codes that are replaced, and segments of dots, in one path: each costs a hundredth of a short request. A run of text
in UTF-8, whose letters are all encoded, is one, and none in capitals. Clients do not encode unreserved characters, and
remove segments of dots themselves (RFC 3986 § 5.2.4, § 6.2.2.2)."""

MAX_HOST_BYTES: Final = 255
"""Longest name that DNS carries (RFC 1035 § 2.3.4), and that RFC 3986 § 3.2.2 asks producers of URLs to keep to."""

ADMIN_PREFIX: Final = b"/-/"
"""Beginning of the paths of the admin interface, which are not forwarded."""

MAX_AUTHORITY_BYTES: Final = MAX_HOST_BYTES + len(":65535")

_AUTHORITY: Final = re.compile(
    rb"(\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)(?::[0-9]*)?"
)
"""RFC 3986 § 3.2.2, without userinfo (RFC 9110 § 4.2.4) and never empty (§ 4.2.1)."""


def server_url(text: str, schemes: Collection[str] = ("http", "https")) -> SplitResult | None:
    """Return the parts of a URL of one of the schemes that names a server; None if it is not one."""
    try:
        url = urlsplit(text)
        is_one = url.scheme in schemes and url.hostname and url.port != 0
    except ValueError:
        return None
    return url if is_one else None


def is_authority(authority: bytes) -> bool:
    """Return whether `authority` is host or host:port, with a host of at most `MAX_HOST_BYTES`."""
    if len(authority) > MAX_AUTHORITY_BYTES:
        return False
    match = _AUTHORITY.fullmatch(authority)
    return match is not None and match.end(1) <= MAX_HOST_BYTES


def normalized(path: bytes) -> bytes:
    """Return the path with unreserved characters decoded, without dot segments, and with single slashes.

    An encoded slash stays encoded: it is data of its segment. Raises ValueError for more than `MAX_PARTS` codes or
    segments that must be replaced.
    """
    return resolved(decoded(path))


def decoded(path: bytes) -> bytes:
    """Return the path with unreserved characters decoded, and the codes of others in capitals."""
    if b"%" not in path:
        return path
    parts = _split_at_codes(path, MAX_PARTS + 1)
    if len(parts) > 2 * MAX_PARTS + 1:
        raise ValueError(f"has more than {MAX_PARTS} codes to decode or to write in capitals")
    parts[1::2] = [_DECODED.get(codes) or codes.upper() for codes in parts[1::2]]
    return b"".join(parts)


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
    parts = _split_at_dots(path, MAX_PARTS + 1)
    if len(parts) > 2 * MAX_PARTS + 1:
        raise ValueError(f"has more than {MAX_PARTS} segments of dots")
    kept = bytearray(parts[0])
    for dots, text in zip(parts[1::2], parts[2::2], strict=True):
        if dots == b"..":
            del kept[max(0, kept.rfind(b"/")) :]
        kept += text
    if not parts[-1]:
        kept += b"/"
    return bytes(kept)


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
