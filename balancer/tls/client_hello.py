"""Read the ALPN protocols that a TLS client offers, which `ssl` does not tell (RFC 8446 § 4.1.2, RFC 7301 § 3.1)."""

from __future__ import annotations

from collections.abc import Collection

HANDSHAKE, CLIENT_HELLO = 22, 1
VERSION_AND_RANDOM_BYTES = 34
ALPN = b"\x00\x10"
HTTP1_WITH_LENGTH = b"\x08http/1.1"

NO_APPLICATION_PROTOCOL = bytes((21, 3, 3, 0, 2, 2, 120))
"""Record with that fatal alert (RFC 7301 § 3.2)."""


def offers_only_others(received: bytes | bytearray, protocols: Collection[bytes]) -> bool:
    """Return whether the ClientHello offers protocols by ALPN, and none of `protocols`, among which HTTP/1.1 is.

    OpenSSL would go on without ALPN.
    """
    if HTTP1_WITH_LENGTH in received or ALPN not in received:  # nearly all clients: no need to parse
        return False
    offered = offered_protocols(received)
    return bool(offered) and not any(name in protocols for name in offered)


def offered_protocols(received: bytes | bytearray) -> list[bytes]:
    """Return the offered protocols; empty if there are none, or if the ClientHello is not whole, not in one record or
    malformed, which is for OpenSSL to judge."""
    if len(received) < 6 or received[0] != HANDSHAKE or received[5] != CLIENT_HELLO:
        return []
    try:
        record, _ = _vector(received, 3, 2)
        hello, _ = _vector(record, 1, 3)
        _, at = _vector(hello, VERSION_AND_RANDOM_BYTES, 1)  # session
        _, at = _vector(hello, at, 2)  # ciphers
        _, at = _vector(hello, at, 1)  # compression
        return _in_extensions(_vector(hello, at, 2)[0])
    except ValueError:
        return []


def _in_extensions(extensions: bytes | bytearray) -> list[bytes]:
    at = 0
    while at < len(extensions):
        kind = extensions[at : at + 2]
        content, at = _vector(extensions, at + 2, 2)
        if kind == ALPN:
            return _names(_vector(content, 0, 2)[0])
    return []


def _names(listed: bytes | bytearray) -> list[bytes]:
    names, at = [], 0
    while at < len(listed):
        name, at = _vector(listed, at, 1)
        names.append(bytes(name))
    return names


def _vector(data: bytes | bytearray, at: int, width: int) -> tuple[bytes | bytearray, int]:
    """Return the bytes after a length of `width` bytes, and their end. Raises `ValueError`."""
    begin = at + width
    end = begin + int.from_bytes(data[at:begin])
    if end > len(data):
        raise ValueError("ends within a field")
    return data[begin:end], end
