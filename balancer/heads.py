"""Message heads on their way through: pure functions from bytes to bytes.

Rule of this file: no I/O, and no state but one memo. llhttp has judged every byte before it comes here, so lines end
in CRLF and nothing is folded; one regular expression then finds the few fields that are not simply passed on. All
others travel as the bytes that they came as: order, case, spacing and repetition survive, and cost nothing.

A *block* is the fields of a head, each line with the CRLF before it: b"\\r\\nHost: a\\r\\nAccept: */*".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple

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

_find_in_request, _find_in_response = REQUEST_FIELDS.findall, RESPONSE_FIELDS.findall


class Framing(Enum):
    """How the end of a body is known (RFC 9112 § 6.3)."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()


_NONE, _LENGTH, _CHUNKED, _UNTIL_CLOSE = Framing
"""For the hot path: an attribute of an enum's class costs four times a global."""


class Client(NamedTuple):
    """What is the same for all requests of one connection.

    `address` is the peer's, `authority` the host:port it connected to, `proto` b"http" or b"https"; `is_trusted` says
    whether its forwarding fields are believed.
    """

    address: bytes
    authority: bytes
    proto: bytes = b"http"
    is_trusted: bool = False


class RequestHead:
    """A request as parsed; `keep_alive` is the client's wish. Nobody changes it."""

    __slots__ = ("block", "is_http10", "keep_alive", "method", "target", "version")

    def __init__(self, method: bytes, target: bytes, version: bytes, keep_alive: bool, block: bytes) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.is_http10 = version == b"HTTP/1.0"
        self.keep_alive = keep_alive
        self.block = block


def outgoing_request(request: RequestHead, client: Client, fresh_id: bytes) -> tuple[bytes, Framing, bytes]:
    """Write the head that the worker gets; raises `RequestRejected`. `fresh_id` is used where no id came.

    Returns the bytes, the framing of the body, and the request's id.
    """
    target, block = request.target, request.block
    found = _find_in_request(block.lower())
    if len(found) == 1 and found[0][0] == b"host" and target.startswith(b"/"):
        framing, request_id = _NONE, fresh_id
        address, proto, host = client.address, client.proto, found[0][1].rstrip()
    else:
        target, authority = _origin_form(request)
        special = _SpecialFields(request, client, authority)
        block, framing = special.block, special.framing
        request_id = special.request_id or fresh_id
        address, proto, host = special.forwarded_for, special.proto, special.host
    head = (
        b"%b %b HTTP/1.1%b\r\nX-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n"
        b"Via: 1.1 steelyard\r\nX-Request-ID: %b\r\n\r\n"
    ) % (request.method, target, block, address, proto, host, request_id)
    return head, framing, request_id


def _origin_form(request: RequestHead) -> tuple[bytes, bytes]:
    """The target a server takes, and the authority that an absolute one names (RFC 9112 § 3.2.2)."""
    target = request.target
    if target.startswith(b"/") or (target == b"*" and request.method == b"OPTIONS"):
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

    def __init__(self, request: RequestHead, client: Client, authority: bytes) -> None:
        values: dict[bytes, list[bytes]] = {}
        cuts: list[tuple[int, int]] = []
        kept = _KEPT_FROM_TRUSTED if client.is_trusted else _KEPT
        for name, value, span in _fields(REQUEST_FIELDS, request.block):
            values.setdefault(name, []).append(value)
            if name not in kept:
                cuts.append(span)
        self.framing = _request_framing(values, request.is_http10)
        self.request_id = _last(values, b"x-request-id", b"")
        if len(self.request_id) > REQUEST_ID_LIMIT:
            self.request_id = b""
        self.host = _host(values, authority, request, client)
        self.block = _without_nominated(values, _cut(request.block, cuts))
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


def _host(values: dict[bytes, list[bytes]], authority: bytes, request: RequestHead, client: Client) -> bytes:
    """RFC 9112 § 3.2: exactly one Host, unless from HTTP/1.0; an absolute target's authority replaces it."""
    hosts = values.get(b"host", [])
    if len(hosts) > 1 or not (hosts or request.is_http10):
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


def _without_nominated(values: dict[bytes, list[bytes]], block: bytes) -> bytes:
    """`block` without the fields that Connection declares hop by hop (RFC 9110 § 7.6.1)."""
    options = b",".join(values.get(b"connection", [])).lower().split(b",")
    return without([option.strip() for option in options], block, keep=_NOT_NOMINATED)


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

_KEEP_ALIVE = b"\r\nConnection: keep-alive"
"""Said by nginx and others in every response: found and removed at a tenth of a general removal's cost."""


def outgoing_response(
    status: int, status_line: bytes, block: bytes, to_head: bool, to_http10: bool, stays: bool
) -> tuple[bytes, Framing]:
    """Write the head that the client gets; raises `MalformedResponse`.

    `to_head`: the request was HEAD; `stays`: the client may send its next request on the same connection. Returns
    the bytes and how the body is framed towards the client. One that ends when the worker closes becomes chunked;
    for an HTTP/1.0 client, as chunked ones do, it ends when we close.
    """
    block = block.replace(_KEEP_ALIVE + b"\r\n", b"\r\n", 1).removesuffix(_KEEP_ALIVE)
    found = _find_in_response(block.lower())
    if len(found) == 1 and found[0][0] == b"content-length":
        framing = _LENGTH
    elif found:
        block, framing = _special_response_fields(block)
    else:
        framing = _UNTIL_CLOSE
    if to_head or status < 200 or status in BODILESS_STATUSES:
        framing = _NONE
    elif framing is not _LENGTH:
        framing = _UNTIL_CLOSE if to_http10 else _CHUNKED
    if framing is not _LENGTH or to_http10 or not stays:
        block += b"" if status < 200 else _own_fields(framing, to_http10, stays)
    return STATUS_LINES[status_line] + block + b"\r\n\r\n", framing


def _special_response_fields(block: bytes) -> tuple[bytes, Framing]:
    """`block` without what ends here, and the worker's framing: LENGTH, CHUNKED or UNTIL_CLOSE."""
    values: dict[bytes, list[bytes]] = {}
    cuts: list[tuple[int, int]] = []
    for name, value, span in _fields(RESPONSE_FIELDS, block):
        values.setdefault(name, []).append(value)
        if name != b"content-length":
            cuts.append(span)
    codings = values.get(b"transfer-encoding", [])
    if codings and (b"content-length" in values or [coding.lower() for coding in codings] != [b"chunked"]):
        raise MalformedResponse("Transfer-Encoding must be 'chunked', once, without Content-Length")
    stated = _LENGTH if b"content-length" in values else _UNTIL_CLOSE
    return _without_nominated(values, _cut(block, cuts)), _CHUNKED if codings else stated


def _own_fields(framing: Framing, to_http10: bool, stays: bool) -> bytes:
    """Our Transfer-Encoding and Connection; keep-alive has to be said to HTTP/1.0 only (RFC 9112 § 9.3)."""
    if framing is _UNTIL_CLOSE or not stays:
        connection = b"\r\nConnection: close"
    else:
        connection = b"\r\nConnection: keep-alive" if to_http10 else b""
    return b"\r\nTransfer-Encoding: chunked" + connection if framing is _CHUNKED else connection


class StatusLines(dict[bytes, bytes]):
    """A worker's status line → the one that the client gets: our version, the worker's code and reason phrase.

    Workers use a handful, so they are checked once and remembered. Raises `MalformedResponse`.
    """

    LIMIT = 1024
    VALID = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})( [\t\x20-\x7e\x80-\xff]*)?")  # RFC 9112 § 4

    def __missing__(self, line: bytes) -> bytes:
        match = self.VALID.fullmatch(line)
        if match is None:
            raise MalformedResponse("the status line is not HTTP/1.x's")
        outgoing = b"HTTP/1.1 " + match[1] + (match[2] or b" ")
        if len(self) < self.LIMIT:
            self[line] = outgoing
        return outgoing


STATUS_LINES = StatusLines()
