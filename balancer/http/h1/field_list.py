"""Convert heads between HTTP/1.1 bytes and lists of fields, as HTTP/2 and libraries use them.

Pure. A request's head is our own, and llhttp has validated it. A response was parsed by a library, so every name and
value is validated before it becomes a line: an extra CRLF would be a second response. Connection-specific fields of
HTTP/1.1 are removed in both directions (RFC 9113 § 8.2.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from balancer.errors import MalformedResponse
from balancer.http.h1.fields import OF_ONE_CONNECTION

Fields = list[tuple[bytes, bytes]]

_OF_ONE_CONNECTION: Final = OF_ONE_CONNECTION
_SPECIAL: Final = _OF_ONE_CONNECTION | {b"host", b"content-length"}
_find_fields: Final = re.compile(rb"\r\n([^:\r]+):[ \t]*([^\r]*)").findall
_is_token: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_is_value: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


class FieldList:
    """A request's head as a list of fields.

    `authority` is its Host, b"" without one; `fields` are the others, unchanged and in order. `length` of the body in
    bytes: 0 without a body, -1 if it is chunked. `takes_trailers`: its TE is trailers. `size` of the head in HTTP/1.1.
    """

    __slots__ = ("authority", "fields", "length", "method", "size", "takes_trailers", "target")

    def __init__(self, method: bytes, target: bytes, authority: bytes, fields: Fields, length: int) -> None:
        self.method = method
        self.target = target
        self.authority = authority
        self.fields = fields
        self.length = length
        self.takes_trailers = False
        self.size = 0


def parse_head(head: bytes) -> FieldList:
    """Parse an outgoing HTTP/1.1 request head, its empty line included."""
    start, *lines = head[:-4].split(b"\r\n")
    method, _, rest = start.partition(b" ")
    authority, length, takes_trailers = b"", 0, False
    fields: Fields = []
    for line in lines:
        name, colon, written = line.partition(b":")
        if not colon:
            continue
        value = written.strip(b" \t")
        lower = name.lower()
        if lower in _SPECIAL:
            if lower == b"host":
                authority = value
                continue
            if lower == b"content-length":
                length = int(value)
            elif lower == b"transfer-encoding":
                length = -1
            if lower in _OF_ONE_CONNECTION:
                if lower == b"te":
                    takes_trailers = value == b"trailers"
                continue
        fields.append((name, value))
    outline = FieldList(method, rest.rpartition(b" ")[0], authority, fields, length)
    outline.takes_trailers, outline.size = takes_trailers, len(head)
    return outline


def fields_of(block: bytes) -> Fields:
    """Return the fields of a block (`fields.py`), for example trailers."""
    pairs: Fields = _find_fields(block)
    return [(name, value.rstrip(b" \t")) for name, value in pairs]


def head_of(status: int, fields: Iterable[tuple[bytes, bytes]], reason: bytes | None = None) -> bytes:
    """Return a response's head in HTTP/1.1 without its empty line. Raises `MalformedResponse`.

    Without Content-Length it reads as if its body went on until the connection closes: the end is reported separately.
    """
    phrase = REASONS.get(status, b"") if reason is None else reason
    if not (100 <= status <= 999 and _is_value(phrase)):
        raise MalformedResponse(f"{status} is no status of HTTP, or its phrase has control characters")
    return b"HTTP/1.1 %d %b\r\n%b" % (status, phrase, _block(fields))


def trailers_of(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a block of trailers, b"" without any. Raises `MalformedResponse`."""
    block = _block(fields)
    return b"\r\n" + block if block else b""


def _block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the field lines, each with its CRLF."""
    lines: list[bytes] = []
    for name, value in fields:
        if _is_token(name) is None or _is_value(value) is None:
            raise MalformedResponse("a field's name or value has characters that HTTP does not allow")
        if name.lower() not in _OF_ONE_CONNECTION:
            lines.append(b"%b: %b\r\n" % (name, value.strip(b" \t")))
    return b"".join(lines)
