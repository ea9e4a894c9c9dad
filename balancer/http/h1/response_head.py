"""Parse a worker's response head and build the head sent to the client.

Pure functions, no I/O; the only state is caches, which change no result.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import inf
from typing import ClassVar, Final

from balancer.config.schema.limits import RESPONSE_FIELDS
from balancer.errors import MalformedResponse
from balancer.http.h1 import upgrades
from balancer.http.h1.fields import (
    END_OF_HEAD,
    FRAMING,
    HOP_BY_HOP,
    NOT_NOMINATED,
    Framing,
    Values,
    any_of,
    connection_options,
    cut,
    first_value_of,
    found,
    lines_of,
    restated,
    without,
)
from balancer.http.h1.internal_fields import InternalFields

_RESPONSE_FIELDS: Final = lines_of(any_of((*HOP_BY_HOP, *FRAMING)))
_find_special: Final = re.compile(rb"\n(%b):([^\r]*)" % any_of((*HOP_BY_HOP, *FRAMING, "date"))).findall
"""Values include the surrounding white space: any unusual spelling takes the slow path."""

BODILESS_STATUSES: Final = frozenset((204, 304))

_KEEP_ALIVE: Final = b"\r\nConnection: keep-alive\r\n"
"""Sent by nginx and others in every response: removed at a tenth of the cost of the general removal."""

NONE: Final = Framing.NONE
LENGTH: Final = Framing.LENGTH
CHUNKED: Final = Framing.CHUNKED
UNTIL_CLOSE: Final = Framing.UNTIL_CLOSE

HEAD_LIMIT: Final = 65_536
"""Maximum bytes of a response's head."""

INTERIM_LIMIT: Final = 100
"""Maximum interim responses (1xx) to one request; each is passed on to the client, however slowly it reads."""


class Response:
    """A parsed response head.

    `line` is the status line with our version; `block` are the fields to pass on, without hop-by-hop fields. `framing`
    is how the worker frames a body, if one may follow: LENGTH, of `length` bytes, CHUNKED or UNTIL_CLOSE. `keep_alive`:
    the worker accepts further requests on the connection. `has_date`: the response has a Date field. `is_bodiless`: no
    body follows, whatever the fields say (RFC 9112 § 6.3, case 1); the caller handles HEAD.
    """

    def __init__(
        self,
        status: int,
        line: bytes,
        block: bytes,
        framing: Framing,
        length: int,
        keep_alive: bool,
        has_date: bool,
    ) -> None:
        self.status = status
        self.line = line
        self.block = block
        self.framing = framing
        self.length = length
        self.keep_alive = keep_alive
        self.has_date = has_date
        self.is_bodiless = status < 200 or status in BODILESS_STATUSES
        self._internal: InternalFields | None = None  # the fields removed from `_public`
        self._public = block
        self.head = b""  # for a client of HTTP/1.1 that stays, once it was built
        self.may_report: bool | None = None  # `block` may have a load report; None until that is asked
        self.content: list[bytes | None] | None = None  # what an `AnswerReader` has found in it

    def block_without(self, internal: InternalFields) -> bytes:
        """Return `block` without internal fields. The result is cached with the head."""
        if internal is not self._internal:
            self._public = internal.without(self.block)
            self._internal = internal
        return self._public


class ResponseHeads:
    """Checks and parses the response heads of one connection, but not again a head equal to the last one."""

    __slots__ = ("_head", "_response")

    def __init__(self) -> None:
        self._head = b""
        self._response: Response | None = None  # the result for `_head`, the last one

    def incoming(self, head: bytes) -> Response:
        """Parse a head as received, without its empty line. Raises `MalformedResponse`."""
        response = self._response
        if response is None or head != self._head:
            if len(head) > 2 * RESPONSE_FIELDS:  # a field has two bytes at least
                self.bound(head)
            self._response = response = incoming_response(head)
            self._head = head
        return response

    def bound(self, head: bytes) -> None:
        """Raise `MalformedResponse` if a head, or what has come of it, is too long."""
        if len(head) > HEAD_LIMIT:
            raise MalformedResponse(f"more than {HEAD_LIMIT} bytes of head")
        if head.count(b"\n") > RESPONSE_FIELDS + 1:
            raise MalformedResponse(f"more than {RESPONSE_FIELDS} fields")


def incoming_response(head: bytes) -> Response:
    """Parse a head as received, without its empty line. Raises `MalformedResponse`."""
    line_end = head.find(b"\r\n")
    status, line, is_http11 = STATUS_LINES[head[:line_end]]
    block = head[line_end:]
    length = -1
    has_date = has_keep_alive = False
    special: list[tuple[bytes, bytes]] = _find_special(block.lower())
    for name, value in special:
        if name == b"date":
            has_date = True
        elif name == b"content-length" and length < 0 and value[:1] == b" ":
            length = _plain_length(value[1:])
            if length < 0:
                return _special_response(status, line, block, is_http11)
        elif name == b"connection" and value == b" keep-alive" and not has_keep_alive:
            has_keep_alive = True
        else:
            return _special_response(status, line, block, is_http11)
    if length < 0 or not is_http11 or status < 200 or status == 204:
        return _special_response(status, line, block, is_http11)
    if has_keep_alive:
        block = _without_keep_alive(block)
    return Response(status, line, block, LENGTH, length, True, has_date)


def _without_keep_alive(block: bytes) -> bytes:
    """Remove `Connection: keep-alive`, which is mostly the last line."""
    size = len(_KEEP_ALIVE) - 2
    if block.endswith(_KEEP_ALIVE):
        return block[:-size]
    at = block.find(_KEEP_ALIVE)
    return block[:at] + block[at + size :] if at >= 0 else without([b"connection"], block)


def _special_response(status: int, line: bytes, block: bytes, is_http11: bool) -> Response:
    """General path: parse a response with more, or less, than a Content-Length."""
    values: Values = {}
    cuts: list[tuple[int, int]] = []
    has_length = status >= 200 and status != 204  # otherwise the field is forbidden (RFC 9110 § 8.6)
    for name, value, span in found(_RESPONSE_FIELDS, block):
        values.setdefault(name, []).append(value)
        if name != b"content-length" or not has_length:
            cuts.append(span)
    framing, length = _response_framing(values)
    options = connection_options(values)
    block = without(options, cut(block, cuts), keep=NOT_NOMINATED)
    if framing is LENGTH and has_length:
        block = restated(block, framing, length)
    block = upgrades.restated(status, values, options, block)
    keep_alive = b"close" not in options and (is_http11 or b"keep-alive" in options)
    ends_by_itself = framing is not UNTIL_CLOSE or status in BODILESS_STATUSES
    return Response(
        status,
        line,
        block,
        framing,
        length,
        keep_alive and ends_by_itself,
        block.lower().find(b"\ndate:") >= 0,
    )


def _response_framing(values: Values) -> tuple[Framing, int]:
    """Return LENGTH, CHUNKED or UNTIL_CLOSE, and the length. Raises `MalformedResponse` for ambiguous framing."""
    codings = values.get(b"transfer-encoding", [])
    lengths = values.get(b"content-length", [])
    if codings:
        if lengths or [coding.lower() for coding in codings] != [b"chunked"]:
            raise MalformedResponse("Transfer-Encoding must be 'chunked', once, without Content-Length")
        return CHUNKED, 0
    if not lengths:
        return UNTIL_CLOSE, 0
    if len(lengths) > 1:
        raise MalformedResponse("more than one Content-Length")
    return LENGTH, _length(lengths[0])


def _plain_length(digits: bytes) -> int:
    """Return the number of bytes; -1 for anything but digits without leading zeros."""
    if not digits.isdigit() or len(digits) > 18 or (digits[:1] == b"0" and digits != b"0"):
        return -1
    return int(digits)


def _length(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 18:
        raise MalformedResponse("Content-Length must be a number of bytes")
    return int(digits)


def outgoing_head(
    response: Response, fields: bytes, to_head: bool, to_http10: bool, stays: bool, date: bytes = b""
) -> tuple[bytes, Framing]:
    """Return the head of a final response as sent to the client, with `fields`, and the body's framing to the client.

    `to_head`: the request was HEAD; `stays`: the client may send its next request on the same connection; `date`: a
    line to add if the response has no Date (RFC 9110 § 6.6.1). A body that ends when the worker closes becomes chunked.
    For an HTTP/1.0 client, such a body and a chunked one end when the downstream connection closes.
    """
    framing = response.framing
    if response.head and fields is response.block and stays and not (to_head or to_http10):
        return response.head, framing
    if to_head or response.is_bodiless:
        framing = NONE
    elif framing is not LENGTH:
        framing = UNTIL_CLOSE if to_http10 else CHUNKED
    if not response.has_date:
        fields += date
    if framing is not LENGTH or to_http10 or not stays:
        fields += _own_fields(framing, to_http10, stays)
    elif response.has_date and fields is response.block:
        response.head = response.line + fields + b"\r\n"
        return response.head, framing
    return response.line + fields + b"\r\n", framing


def _own_fields(framing: Framing, to_http10: bool, stays: bool) -> bytes:
    """Return our Transfer-Encoding and Connection lines; keep-alive is stated for HTTP/1.0 only (RFC 9112 § 9.3)."""
    if framing is UNTIL_CLOSE or not stays:
        connection = b"Connection: close\r\n"
    else:
        connection = b"Connection: keep-alive\r\n" if to_http10 else b""
    return b"Transfer-Encoding: chunked\r\n" + connection if framing is CHUNKED else connection


class StatusLines(dict[bytes, tuple[int, bytes, bool]]):
    """A worker's status line → its code, the line for the client, and whether the worker's version is 1.1.

    The outgoing line has our version, the worker's code and reason phrase. Workers use only a few, so each is validated
    once and cached. Raises `MalformedResponse`.
    """

    LIMIT: ClassVar[int] = 1024
    VALID: ClassVar[re.Pattern[bytes]] = re.compile(
        rb"HTTP/1\.([01]) ([1-9][0-9]{2})( [\t\x20-\x7e\x80-\xff]*)?"
    )  # RFC 9112 § 4

    def __missing__(self, line: bytes) -> tuple[int, bytes, bool]:
        match = self.VALID.fullmatch(line)
        if match is None:
            raise MalformedResponse("the status line is not HTTP/1.x's")
        outgoing = b"HTTP/1.1 " + match[2] + (match[3] or b" ")
        found = int(match[2]), outgoing, match[1] == b"1"
        if len(self) < self.LIMIT:
            self[line] = found
        return found


STATUS_LINES: Final = StatusLines()


_KEEP_ALIVE_FIELD: Final = first_value_of(b"keep-alive")
_TIMEOUT: Final = re.compile(rb'(?i)(?:^|[,\s])timeout\s*=\s*"?([0-9]{1,6})')


def keep_alive_timeout(data: bytes) -> float:
    """Return the timeout of Keep-Alive in the head, or part of one, that `data` begins with, in seconds; 0 for none.

    `Keep-Alive: timeout=N` (RFC 2068 § 19.7.1.1) is a hint that many servers still send. A malformed value is ignored.
    """
    end = data.find(END_OF_HEAD)
    found = _KEEP_ALIVE_FIELD.search(data, 0, end if end >= 0 else len(data))
    match = _TIMEOUT.search(found[1]) if found is not None else None
    return float(match[1]) if match is not None else 0.0


_RETRY_AFTER: Final = first_value_of(b"retry-after")
MOST_DIGITS: Final = 9


def retry_after(block: bytes, today: datetime | None = None) -> float | None:
    """Return the seconds that Retry-After in a block of fields asks to wait (RFC 9110 § 10.2.3), None where it states
    none that can be read."""
    found = _RETRY_AFTER.search(block)
    if found is None:
        return None
    value = found[1].strip()
    if value.isdigit():
        return float(value) if len(value) <= MOST_DIGITS else inf
    try:
        date = parsedate_to_datetime(value.decode("latin-1"))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if date.tzinfo is None:
        return None
    return max(0.0, (date - (today or datetime.now(UTC))).total_seconds())
