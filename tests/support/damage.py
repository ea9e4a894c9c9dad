"""Mutations of HTTP messages: at line ends, around colons, and in framing fields.

A mutation is data, `(kind, where, token)`, and deterministic.
"""

from __future__ import annotations

import re
from random import Random

Damage = tuple[int, int, int]

TOKENS = (
    b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b" ", b"\t", b"\0", b"\x0b", b"\x7f", b"\x80", b":", b",", b";", b"0",
    b"\r\n folded", b"\n\tfolded", b" :", b"\r\n: x", b"\r\nX", b"\r\nX Y: z",
    *(
        b"\r\n" + field
        for field in (
            b"Content-Length: 0", b"Content-Length: 5", b"content-length:38", b"Content-Length: +5",
            b"Content-Length: 5, 5", b"Content-Length: 0x5", b"Content-Length:", b"Content-Length: -1",
            b"Content_Length: 5", b"Content-Length : 5",
        )
    ),
    b"\nContent-Length: 5", b"\rContent-Length: 5",
    *(
        b"\r\n" + field
        for field in (
            b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding:\x0bchunked",
            b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: xchunked",
        )
    ),
    b"\nTransfer-Encoding: chunked",
    *(
        b"\r\n" + field
        for field in (
            b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding:",
            b'Transfer-Encoding: "chunked"', b"Transfer-Encoding:\r\n chunked", b"X: a\nTransfer-Encoding: chunked",
            b"Connection: close", b"Connection: content-length", b"Connection: transfer-encoding, host",
            b"Host: evil", b"Upgrade: h2c\r\nConnection: Upgrade", b"Expect: 100-continue", b"Host:",
        )
    ),
    b" HTTP/1.0", b" HTTP/1.1", b" HTTP/2.0", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
    b"0\r\n\r\n", b"0\n\n", b"1\r\na\r\n", b"\r\n0\r\n", b";x\n0\r\n\r\n", b"ffffffffffffffff", b"10000000000000005",
    b"0x5\r\n", b"-1\r\n", b"5 \r\n", b"5;\r\n", b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", b"http://b/",
    b"*", b"/-/health",
)  # fmt: skip
"""Tokens known from request smuggling, and parts of them."""

_PLACES = re.compile(rb"(?=\r\n)|(?<=\n)|(?=:)|(?<=: )|\Z|\A|(?= )")
_LINES = re.compile(rb"(?<=\n)")


def damaged(data: bytes, damages: list[Damage]) -> bytes:
    """Apply all mutations."""
    for kind, where, token in damages:
        data = _KINDS[kind % len(_KINDS)](data, where, TOKENS[token % len(TOKENS)])
    return data


def any_damage(rng: Random) -> Damage:
    """A random mutation."""
    return rng.randrange(len(_KINDS)), rng.randrange(1 << 16), rng.randrange(len(TOKENS))


def _place(data: bytes, where: int) -> int:
    places = [match.start() for match in _PLACES.finditer(data)]
    return places[where % len(places)]


def _insert(data: bytes, where: int, token: bytes) -> bytes:
    at = _place(data, where)
    return data[:at] + token + data[at:]


def _insert_anywhere(data: bytes, where: int, token: bytes) -> bytes:
    at = where % (len(data) + 1)
    return data[:at] + token + data[at:]


def _replace(data: bytes, where: int, token: bytes) -> bytes:
    at = where % (len(data) + 1)
    return data[:at] + token + data[at + len(token) :]


def _delete(data: bytes, where: int, token: bytes) -> bytes:
    at = _place(data, where)
    return data[:at] + data[at + 1 + len(token) % 3 :]


def _repeat_line(data: bytes, where: int, token: bytes) -> bytes:
    lines = _LINES.split(data)
    at = where % len(lines)
    return b"".join((*lines[:at], lines[at], *lines[at:]))


def _drop_line(data: bytes, where: int, token: bytes) -> bytes:
    lines = _LINES.split(data)
    at = where % len(lines)
    return b"".join((*lines[:at], *lines[at + 1 :]))


def _bare_end(data: bytes, where: int, token: bytes) -> bytes:
    """End a line in a bare LF or CR."""
    ends = [match.start() for match in re.finditer(rb"\r\n", data)]
    if not ends:
        return data
    at = ends[where % len(ends)]
    return data[:at] + (b"\n" if len(token) % 2 else b"\r") + data[at + 2 :]


_KINDS = (_insert, _insert, _insert_anywhere, _replace, _delete, _repeat_line, _drop_line, _bare_end)
