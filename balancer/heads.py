"""Message heads on their way through: pure functions from bytes to bytes.

Rule of this file: no I/O, and no state but one memo. llhttp has judged every byte before it comes here, so lines end
in CRLF and nothing is folded; one regular expression then finds the few fields that are not simply passed on. All
others travel as the bytes that they came as: order, case, spacing and repetition survive, and cost nothing.

A *block* is the fields of a head with the CRLF around each: b"\\r\\nHost: a\\r\\nAccept: */*\\r\\n"; without any, one
CRLF.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import ClassVar, NamedTuple

from balancer.errors import MalformedResponse, RequestRejected

END_OF_HEAD = b"\r\n\r\n"

REQUEST_ID_LIMIT = 128
"""Longest X-Request-ID taken over from a client, in bytes (Heroku's router draws the same line)."""

_HOP_BY_HOP = rb"connection|keep-alive|proxy-connection|te|upgrade"  # RFC 9110 § 7.6.1
_FRAMING = rb"content-length|transfer-encoding"
_FORWARDING = rb"x-forwarded-for|x-forwarded-proto|x-forwarded-host|forwarded|x-request-id"
_FIELD = rb"\n(%b):[ \t]*([^\r]*)"

REQUEST_FIELDS = re.compile(_FIELD % b"|".join((b"host", _HOP_BY_HOP, _FRAMING, _FORWARDING)))
RESPONSE_FIELDS = re.compile(_FIELD % b"|".join((_HOP_BY_HOP, _FRAMING)))
"""Searched for in a block in lower case: twice as fast as ignoring case."""

_find_in_request = REQUEST_FIELDS.findall
_find_in_response = re.compile(rb"\n(%b):" % b"|".join((_HOP_BY_HOP, _FRAMING))).findall


class Framing(Enum):
    """How the end of a body is known (RFC 9112 § 6.3)."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()


_NONE, _LENGTH, _CHUNKED, _UNTIL_CLOSE = Framing
"""For the hot path: an attribute of an enum's class costs four times a global."""


class Client:
    """What is the same for all requests of one connection.

    `address` is the peer's, `authority` the host:port it connected to, `proto` b"http" or b"https"; `is_trusted` says
    whether its forwarding fields are believed. `fields` is what we add to its requests, up to the host's name.
    """

    __slots__ = ("address", "authority", "fields", "is_trusted", "proto")

    def __init__(
        self, address: bytes, authority: bytes, proto: bytes = b"http", is_trusted: bool = False
    ) -> None:
        self.address = address
        self.authority = authority
        self.proto = proto
        self.is_trusted = is_trusted
        self.fields = (
            b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nVia: 1.1 steelyard\r\nX-Forwarded-Host: "
        ) % (address, proto)


class Request(NamedTuple):
    """A request on its way: what was asked, and the `head` that the worker gets.

    `framing` is the body's, `keep_alive` the client's wish, `id` what X-Request-ID says.
    """

    method: bytes
    target: bytes
    head: bytes
    id: bytes
    framing: Framing
    keep_alive: bool
    is_http10: bool


new_tuple = tuple.__new__
"""Makes a named tuple in a third of the time of its class, and in half that of a plain object: four per request."""


REFUSED_METHODS = frozenset((b"CONNECT", b"TRACE"))


def outgoing_request(raw: bytes, client: Client, fresh_id: bytes) -> Request:
    """The request that a whole head, as it came, asks for; raises `RequestRejected`.

    `fresh_id` is used where no id came.
    """
    line, _, fields = raw.partition(b"\r\n")
    try:
        method, target, version = line.split(b" ")
    except ValueError:
        raise RequestRejected(400, "bad_request_line", "must be: method, target, version") from None
    found = _find_in_request(raw.lower())
    if len(found) == 1 and version == b"HTTP/1.1" and target[:1] == b"/" and method not in REFUSED_METHODS:
        name, host = found[0]
        if name == b"host":  # nothing to take out: add what we know of the client in place of the empty line
            parts = (raw[:-2], client.fields, host.rstrip(), b"\r\nX-Request-ID: ", fresh_id, END_OF_HEAD)
            return new_tuple(Request, (method, target, b"".join(parts), fresh_id, _NONE, True, False))
    return _special_request(method, target, version, b"\r\n" + fields[:-2], client, fresh_id)


def _special_request(
    method: bytes, target: bytes, version: bytes, block: bytes, client: Client, fresh_id: bytes
) -> Request:
    """A request with more than Host to look at."""
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise RequestRejected(505, "bad_version", "HTTP/1.0 and HTTP/1.1 are spoken here")
    if method in REFUSED_METHODS:
        raise RequestRejected(405, "method_not_allowed", f"{method.decode()} is not forwarded")
    is_http10 = version == b"HTTP/1.0"
    target, authority = _origin_form(method, target)
    special = _SpecialFields(block, is_http10, client, authority)
    request_id = special.request_id or fresh_id
    head = (
        b"%b %b HTTP/1.1%bX-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nVia: 1.1 steelyard\r\n"
        b"X-Forwarded-Host: %b\r\nX-Request-ID: %b\r\n\r\n"
    ) % (method, target, special.block, special.forwarded_for, special.proto, special.host, request_id)
    keep_alive = b"keep-alive" in special.options if is_http10 else b"close" not in special.options
    return Request(method, target, head, request_id, special.framing, keep_alive, is_http10)


def _origin_form(method: bytes, target: bytes) -> tuple[bytes, bytes]:
    """The target a server takes, and the authority that an absolute one names (RFC 9112 § 3.2.2)."""
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return target, b""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise RequestRejected(400, "bad_target", "the request target must be a path or an http(s) URL")
    end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    if not authority or b"@" in authority:
        raise RequestRejected(400, "bad_target", "the request target's authority is empty or holds userinfo")
    return path if path.startswith(b"/") else b"/" + path, authority


class _SpecialFields:
    """The fields that are not simply passed on, and `block` without those that end here."""

    def __init__(self, block: bytes, is_http10: bool, client: Client, authority: bytes) -> None:
        values: dict[bytes, list[bytes]] = {}
        cuts: list[tuple[int, int]] = []
        kept = _KEPT_FROM_TRUSTED if client.is_trusted else _KEPT
        for name, value, span in _fields(REQUEST_FIELDS, block):
            values.setdefault(name, []).append(value)
            if name not in kept:
                cuts.append(span)
        self.options = _connection_options(values)
        self.framing = _request_framing(values, is_http10)
        self.request_id = _last(values, b"x-request-id", b"")
        if len(self.request_id) > REQUEST_ID_LIMIT:
            self.request_id = b""
        self.host = _host(values, authority, is_http10, client)
        self.block = without(self.options, _cut(block, cuts), keep=_NOT_NOMINATED)
        if authority or b"host" not in values:
            self.block = b"\r\nHost: " + self.host + without([b"host"], self.block)
        self._take_forwarding(values if client.is_trusted else {}, client)

    def _take_forwarding(self, believed: dict[bytes, list[bytes]], client: Client) -> None:
        """X-Forwarded-*: what a trusted proxy says of the client before it, and what we see ourselves."""
        self.forwarded_for = b", ".join([*believed.get(b"x-forwarded-for", []), client.address])
        self.proto = _last(believed, b"x-forwarded-proto", client.proto)
        self.host = _last(believed, b"x-forwarded-host", self.host)


_KEPT = frozenset((b"host", b"content-length", b"transfer-encoding"))
_KEPT_FROM_TRUSTED = _KEPT | {b"forwarded"}


def _last(values: dict[bytes, list[bytes]], name: bytes, default: bytes) -> bytes:
    return values[name][-1] if name in values else default


def _request_framing(values: dict[bytes, list[bytes]], is_http10: bool) -> Framing:
    """RFC 9112 § 6: one statement of the length; only `chunked`, and never from an HTTP/1.0 client."""
    lengths, codings = values.get(b"content-length", []), values.get(b"transfer-encoding", [])
    if len(lengths) + len(codings) > 1:
        raise RequestRejected(400, "bad_framing", "more than one statement of the body's length")
    if not codings:
        return _LENGTH if lengths else _NONE
    if is_http10:
        raise RequestRejected(400, "bad_framing", "Transfer-Encoding in an HTTP/1.0 request")
    if codings[0].lower() != b"chunked":
        raise RequestRejected(501, "unknown_coding", "Transfer-Encoding must be exactly 'chunked'")
    return _CHUNKED


def _host(values: dict[bytes, list[bytes]], authority: bytes, is_http10: bool, client: Client) -> bytes:
    """RFC 9112 § 3.2: exactly one Host, unless from HTTP/1.0; an absolute target's authority replaces it."""
    hosts = values.get(b"host", [])
    if len(hosts) > 1 or not (hosts or is_http10):
        raise RequestRejected(400, "bad_host", f"a request needs exactly one Host field, got {len(hosts)}")
    return authority or (hosts[0] if hosts else client.authority)


def _fields(pattern: re.Pattern[bytes], block: bytes) -> Iterator[tuple[bytes, bytes, tuple[int, int]]]:
    """Name in lower case, value as it came, and where the line stands with the CRLF before it."""
    for match in pattern.finditer(block.lower()):
        start, end = match.span(2)
        yield match[1], block[start:end].rstrip(), (match.start() - 1, end)


def _cut(block: bytes, spans: list[tuple[int, int]]) -> bytes:
    """`block` without `spans`, which come in order."""
    for start, end in reversed(spans):
        block = block[:start] + block[end:]
    return block


_NOT_NOMINATED = _KEPT | {b"", b"close", b"keep-alive", b"upgrade", b"te"}
"""Connection options that name no field, one that is removed anyway, or one that framing and routing need."""


def _connection_options(values: dict[bytes, list[bytes]]) -> list[bytes]:
    """In lower case: what Connection asks for, and which fields it declares hop by hop (RFC 9110 § 7.6.1)."""
    return [option.strip() for value in values.get(b"connection", []) for option in value.lower().split(b",")]


def without(names: Iterable[bytes], block: bytes, keep: frozenset[bytes] = frozenset()) -> bytes:
    """`block` without the fields named, in lower case, but for those in `keep`."""
    unwanted = [re.escape(name) for name in names if name not in keep]
    if not unwanted:
        return block
    pattern = re.compile(_FIELD % b"|".join(unwanted))
    return _cut(block, [span for _, _, span in _fields(pattern, block)])


def framing_alone(block: bytes) -> bytes:
    """A head that says of a body what `block` says, and nothing else; b"" where it announces none."""
    names = (b"content-length", b"transfer-encoding")
    lines = [b"%b: %b\r\n" % (n, value) for n, value, _ in _fields(REQUEST_FIELDS, block) if n in names]
    return b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\n" % b"".join(lines) if lines else b""


def field(block: bytes, name: bytes) -> bytes | None:
    """The value of a field, its name given in lower case; None where there is none. The first of several."""
    at = block.lower().find(b"\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 2
    end = block.find(b"\r", start)
    return block[start : end if end >= 0 else len(block)].strip()


BODILESS_STATUSES = frozenset((204, 304))

_KEEP_ALIVE = b"\r\nConnection: keep-alive\r\n"
"""Said by nginx and others in every response: found and removed at a tenth of a general removal's cost."""

_LENGTH_ALONE = [b"content-length"]


class Response(NamedTuple):
    """The head of a worker's response: what it says, and what of it is passed on.

    `line` is the status line with our version, `block` has no field left that ends here. `framing` is how the worker
    frames a body, if one may follow: LENGTH, CHUNKED or UNTIL_CLOSE. `keep_alive`: the worker takes further requests.
    """

    status: int
    line: bytes
    block: bytes
    framing: Framing
    keep_alive: bool


def incoming_response(head: bytes) -> Response:
    """Read a head, as it came but for the empty line; raises `MalformedResponse`."""
    line_end = head.find(b"\r\n")
    status, line, is_http11 = STATUS_LINES[head[:line_end]]
    block = head[line_end:]
    if is_http11:
        block = block.replace(_KEEP_ALIVE, b"\r\n", 1)
        if _find_in_response(block.lower()) == _LENGTH_ALONE:
            return new_tuple(Response, (status, line, block, _LENGTH, True))
    return _special_response(status, line, block, is_http11)


def _special_response(status: int, line: bytes, block: bytes, is_http11: bool) -> Response:
    """A response with more, or less, than Content-Length to look at."""
    values: dict[bytes, list[bytes]] = {}
    cuts: list[tuple[int, int]] = []
    for name, value, span in _fields(RESPONSE_FIELDS, block):
        values.setdefault(name, []).append(value)
        if name != b"content-length":
            cuts.append(span)
    framing = _response_framing(values)
    options = _connection_options(values)
    block = without(options, _cut(block, cuts), keep=_NOT_NOMINATED)
    keep_alive = b"close" not in options and (is_http11 or b"keep-alive" in options)
    ends_by_itself = framing is not _UNTIL_CLOSE or status in BODILESS_STATUSES
    return Response(status, line, block, framing, keep_alive and ends_by_itself)


def _response_framing(values: dict[bytes, list[bytes]]) -> Framing:
    """LENGTH, CHUNKED or UNTIL_CLOSE; raises `MalformedResponse` where a client could take it for another."""
    codings = values.get(b"transfer-encoding", [])
    if not codings:
        return _LENGTH if b"content-length" in values else _UNTIL_CLOSE
    if b"content-length" in values or [coding.lower() for coding in codings] != [b"chunked"]:
        raise MalformedResponse("Transfer-Encoding must be 'chunked', once, without Content-Length")
    return _CHUNKED


def outgoing_response(
    response: Response, to_head: bool, to_http10: bool, stays: bool
) -> tuple[bytes, Framing]:
    """Write the head that the client gets.

    `to_head`: the request was HEAD; `stays`: the client may send its next request on the same connection. Returns
    the bytes and how the body is framed towards the client. One that ends when the worker closes becomes chunked;
    for an HTTP/1.0 client, as chunked ones do, it ends when we close.
    """
    status, block, framing = response.status, response.block, response.framing
    if to_head or status < 200 or status in BODILESS_STATUSES:
        framing = _NONE
    elif framing is not _LENGTH:
        framing = _UNTIL_CLOSE if to_http10 else _CHUNKED
    if (framing is not _LENGTH or to_http10 or not stays) and status >= 200:
        block += _own_fields(framing, to_http10, stays)
    return response.line + block + b"\r\n", framing


def _own_fields(framing: Framing, to_http10: bool, stays: bool) -> bytes:
    """Our Transfer-Encoding and Connection; keep-alive has to be said to HTTP/1.0 only (RFC 9112 § 9.3)."""
    if framing is _UNTIL_CLOSE or not stays:
        connection = b"Connection: close\r\n"
    else:
        connection = b"Connection: keep-alive\r\n" if to_http10 else b""
    return b"Transfer-Encoding: chunked\r\n" + connection if framing is _CHUNKED else connection


class StatusLines(dict[bytes, tuple[int, bytes, bool]]):
    """A worker's status line → its code, the line that the client gets, and whether the worker's version is 1.1.

    The outgoing line has our version, the worker's code and reason phrase. Workers use a handful, so they are checked
    once and remembered. Raises `MalformedResponse`.
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


STATUS_LINES = StatusLines()
