"""Build the request head sent to a worker from the head received.

Pure functions, no I/O. The result of parsing the fields (`request_fields.py`) does not depend on the request line, and
a client mostly repeats its fields from one request to the next (as HPACK, RFC 7541, exploits): then the last result is
reused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from balancer.errors import RequestRejected
from balancer.http.h1 import upgrades
from balancer.http.h1.client import Client
from balancer.http.h1.fields import END_OF_HEAD, PROTO, found, lines_of
from balancer.http.h1.request_fields import (
    CONTENT_LENGTH,
    MOST_DIGITS,
    RequestFields,
    SpecialFields,
    request_fields,
)
from balancer.syntax.urls import is_authority

_MAX_FORWARDS: Final = lines_of(b"max-forwards")

HTTP11: Final = b"HTTP/1.1"
_HTTP10: Final = b"HTTP/1.0"

REFUSED_METHODS: Final = frozenset((b"CONNECT", b"TRACE"))
"""Refused unless allowed: CONNECT opens a tunnel, TRACE echoes fields to a script that may not read them."""

_LOOKED_AT: Final = REFUSED_METHODS | {b"OPTIONS"}
"""Methods that need more than their fields parsed."""


KeyOf = Callable[["Request", Client], "str | None"]
"""Returns the key of a request, as [key] or [sticky] configures it; None if the request has none."""

_LF: Final = 10
_NUMBER_SIGN: Final = 35
_SPACE: Final = 32
"""Bytes that are searched for as integers, which is faster than as a string of one byte."""

_WORTH_KEEPING: Final = 1024
"""Maximum bytes of a head that is kept between requests, to recognise it when the client repeats it."""


class Request:
    """A parsed request: `head` is sent to the worker, `id` is its X-Request-ID, `raw` is the head as received.

    `path` is the normalized path while routes are in use. `model` is what its body names, "" for nothing and None until
    that is read; `body_bound` is how many bytes of it may be read, more than 0 once a route depends on the model.
    `arrived` is when its head came, where its handler is found later.
    """

    path = b""
    model: str | None = None
    body_bound = 0
    arrived: tuple[float, float] | None = None
    _key: str | None = None
    _keyed_by: KeyOf | None = None  # what has found `_key`

    def __init__(
        self, method: bytes, target: bytes, head: bytes, request_id: bytes, fields: RequestFields, raw: bytes
    ) -> None:
        self.method = method
        self.target = target
        self.head = head
        self.id = request_id
        self.fields = fields
        self.raw = raw

    def key_by(self, key_of: KeyOf, client: Client) -> str | None:
        """Return the key that `key_of` finds; further calls for the same one do not search again."""
        if self._keyed_by != key_of:
            self._key = key_of(self, client)
            self._keyed_by = key_of
        return self._key

    @property
    def received_target(self) -> bytes:
        """Return the target as received: a route may have rewritten `target`."""
        raw, begin = self.raw, len(self.method) + 1
        end = begin + len(self.target)
        if raw[begin:end] == self.target and end < len(raw) and raw[end] == _SPACE:
            return self.target
        begin = raw.find(b" ") + 1
        return raw[begin : raw.find(b" ", begin)]

    def retarget(self, target: bytes, added: bytes = b"") -> None:
        """Replace the target that is sent, and add field lines, each behind its CRLF."""
        head = self.head
        begin, end = head.find(b"\r\n"), head.find(PROTO)
        self.target = target
        self.head = b"%b %b HTTP/1.1%b%b%b" % (self.method, target, head[begin:end], added, head[end:])

    def another_head(self) -> bytes:
        """Return the head for a further attempt, a retry or a hedge."""
        return self.head


class RequestHeads:
    """Parses the request heads of one connection, with a cache of the last fields.

    `known` is the last head, if it is short and in the common form, or the part of it before the digits of its
    Content-Length, if it has one; else None. `fresh_id` returns the id of a request that came without one.
    """

    def __init__(self, client: Client, fresh_id: Callable[[], bytes]) -> None:
        self._client = client
        self._fresh_id = fresh_id
        self._block = b""
        self._fields = RequestFields(b"")  # the result for `_block`, the last one
        self.known: bytes | None = None
        self._behind: bytes | None = None  # the part of the last head behind those digits
        self._raw = self._line = self._method = self._target = b""

    def outgoing(self, raw: bytes) -> Request:
        """Parse a complete head as received. Raises `RequestRejected`."""
        end = raw.find(b"\r\n")
        line = raw[:end]
        parts = line.split(b" ")
        if len(parts) != 3 or _LF in line:  # llhttp takes LF for the end of HTTP/0.9
            raise RequestRejected(400, "bad_request_line", "must be: method, target, version")
        request = self.request(line, parts[0], parts[1], parts[2], raw[end:-2], raw)
        fields = request.fields
        self.known = self._behind = None
        if fields is self._fields and len(raw) <= _WORTH_KEEPING:
            self.known = self._raw = raw
            self._line, self._method, self._target = line, request.method, request.target
            at = raw.find(CONTENT_LENGTH) if fields.length else -1
            if at >= 0:
                at += len(CONTENT_LENGTH)
                self.known, self._behind = raw[:at], raw[raw.find(b"\r", at) :]
        return request

    def repeated(self, data: bytes) -> Request | None:
        """Return another request with the last head, or one that differs in the digits of Content-Length only, which
        is not parsed again. `data` begins with `known`; None: its head is another one."""
        behind = self._behind
        if behind is not None and not data.startswith(self._raw):
            at = self._raw.find(CONTENT_LENGTH) + len(CONTENT_LENGTH)
            end = data.find(b"\r", at, at + MOST_DIGITS + 1)
            digits = data[at:end] if end > at else b""
            if not digits.isdigit() or digits.startswith(b"0") or not data.startswith(behind, end):
                return None
            end += len(behind)
            if end > _WORTH_KEEPING:  # which the least limit on a head is
                return None
            self._fields = self._fields.of_length(digits)
            self._block = b""  # that of the fields is not made for this
            self._raw = data[:end]
        return self._request(self._line, self._method, self._target, self._fields, self._raw)

    def request(
        self, line: bytes, method: bytes, target: bytes, version: bytes, block: bytes, raw: bytes
    ) -> Request:
        """Parse a head whose request line has been split; `block` is its fields. Raises `RequestRejected`."""
        block = self._block_of(block)
        if _NUMBER_SIGN in target:  # RFC 9112 § 3.2: a fragment is the client's own
            raise RequestRejected(400, "bad_target", "the request target must not have a fragment")
        if version == HTTP11 and target.startswith(b"/") and method not in _LOOKED_AT:
            if block != self._block:
                self._fields = request_fields(block, self._client)
                self._block = block
                if self._client.stated is not None:
                    self._fields.stated = self._client.stated.of(block)
            fields = self._fields
        else:
            target, fields = _unusual(method, target, version, block, self._client)
            line = b"%b %b HTTP/1.1" % (method, target)
        return self._request(line, method, target, fields, raw)

    def _block_of(self, received: bytes) -> bytes:
        return received

    def _request(
        self, line: bytes, method: bytes, target: bytes, fields: RequestFields, raw: bytes
    ) -> Request:
        request_id = fields.request_id or self._fresh_id()
        head = line + fields.outgoing + request_id + END_OF_HEAD  # in half the time of a join
        return Request(method, target, head, request_id, fields, raw)


def _unusual(
    method: bytes, target: bytes, version: bytes, block: bytes, client: Client
) -> tuple[bytes, RequestFields]:
    """Parse a request that is not in the common form."""
    if version not in (HTTP11, _HTTP10):
        raise RequestRejected(505, "bad_version", "HTTP/1.0 and HTTP/1.1 are spoken here")
    if method in REFUSED_METHODS and method not in client.allowed:
        raise RequestRejected(405, "method_not_allowed", f"{method.decode()} is not forwarded")
    target, authority = _origin_form(method, target)
    if method in _LOOKED_AT:
        block = _one_hop_further(block)
    fields = SpecialFields(block, version == _HTTP10, client, authority).parse()
    if client.stated is not None:
        fields.stated = client.stated.of(block)
    if method in REFUSED_METHODS and fields.has_body:  # RFC 9110 §§ 9.3.6, 9.3.8
        raise RequestRejected(400, "bad_framing", f"{method.decode()} has no body")
    if method == b"CONNECT":
        fields.is_offer = True
    return target, fields


def _one_hop_further(block: bytes) -> bytes:
    """Decrement Max-Forwards of OPTIONS and TRACE (RFC 9110 § 7.6.2)."""
    for _, value, (start, end) in found(_MAX_FORWARDS, block):
        if not value.isdigit() or len(value) > 18:
            raise RequestRejected(400, "bad_max_forwards", "Max-Forwards must be a number")
        if not int(value):
            raise RequestRejected(405, "max_forwards", "Max-Forwards is used up: this goes no further")
        return b"%b\r\nMax-Forwards: %d%b" % (block[:start], int(value) - 1, block[end:])
    return block


def _origin_form(method: bytes, target: bytes) -> tuple[bytes, bytes]:
    """Return the target in origin form, and the authority of an absolute one (RFC 9112 § 3.2.2).

    CONNECT has only an authority (§ 3.2.3), which is returned as both.
    """
    if method == b"CONNECT":
        if not (upgrades.is_authority(target) and is_authority(target)):
            raise RequestRejected(400, "bad_target", "CONNECT takes host:port")
        return target, target
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return target, b""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise RequestRejected(400, "bad_target", "the request target must be a path or an http(s) URL")
    end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    if not is_authority(authority):
        raise RequestRejected(400, "bad_target", "the request target's authority must be host or host:port")
    if not path and method == b"OPTIONS":
        return b"*", authority  # RFC 9112 § 3.2.4
    return path if path.startswith(b"/") else b"/" + path, authority
