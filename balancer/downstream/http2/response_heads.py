"""Translate response heads of HTTP/1.1 to the fields of HTTP/2 (RFC 9113 § 8.3.2). Pure; the only state is a cache."""

from __future__ import annotations

from typing import Final

from balancer.errors import MalformedResponse
from balancer.http.h1.field_list import fields_of
from balancer.http.h2.events import Fields
from balancer.http.h2.sendable import UnsendableFields, sendable

_OF_ONE_CONNECTION: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"upgrade", b"transfer-encoding", b"te")
)


class StreamResponseHeads:
    """Translates the response heads of one connection; a head equal to the last one is not translated again."""

    def __init__(self) -> None:
        self._block = b""
        self._status = 0
        self._fields: Fields = []  # the result for these, the last ones

    def fields_of(self, status: int, block: bytes) -> Fields:
        """Return the fields of a head. Raises `MalformedResponse`."""
        if block != self._block or status != self._status:
            self._fields = translated(status, block)
            self._block, self._status = block, status
        return self._fields


def translated(status: int, block: bytes) -> Fields:
    """Return the fields of a head. Raises `MalformedResponse`."""
    pairs: Fields = [(b":status", b"%d" % status)]
    has_no_length = status < 200 or status == 204  # RFC 9110 § 8.6, which clients of HTTP/2 enforce
    for name, value in fields_of(block):
        lower = name.lower()
        if lower not in _OF_ONE_CONNECTION and not (has_no_length and lower == b"content-length"):
            pairs.append((name, value))
    try:
        return sendable(pairs)
    except UnsendableFields as error:
        raise MalformedResponse(f"HTTP/2 does not allow {error}") from None


def own_message(response: bytes) -> tuple[int, bytes, bytes]:
    """Return status, block of fields and body of a whole response of the balancer's own, in HTTP/1.1."""
    head, _, body = response.partition(b"\r\n\r\n")
    line, end, fields = head.partition(b"\r\n")
    return int(line[9:12]), end + fields + b"\r\n", body
