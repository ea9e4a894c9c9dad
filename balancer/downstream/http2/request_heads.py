"""Translate the fields of an HTTP/2 request (RFC 9113 § 8.3) to a head in HTTP/1.1, which is then parsed as any other.

So a worker gets what it would get for the same request in HTTP/1.1, by the same code. The engine has validated names
and values, also that no field belongs to one connection; what would become another message in HTTP/1.1 is refused here
again. A client mostly repeats its fields from one request to the next, and then the last translation is reused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from os import urandom
from typing import Final

from balancer.config.schema.limits import Limits
from balancer.errors import RequestRejected
from balancer.http.grpc.call import has_grpc_type
from balancer.http.h1.client import Client
from balancer.http.h1.fields import OF_ONE_CONNECTION
from balancer.http.h1.request_head import HTTP11, Request
from balancer.http.h1.request_reader import takes_method
from balancer.http.h1.traced_head import heads_for
from balancer.http.h1.upgrades import websocket_offer

FieldPairs = tuple[tuple[bytes, bytes], ...]

MAX_REPEATED_BYTES: Final = 4096
"""Bytes of long fields that a head may have more than once: as many as the table of HPACK holds (RFC 7541 § 4.2).

A field that the client has sent once costs it a byte each time it refers to it. Without repetition a head takes at most
the table from there; with it, 20 bytes would become a head of 32 KiB. Clients do not repeat long fields in a head."""

MIN_COUNTED_BYTES: Final = 256
"""Bytes of a name or a value from which on it counts."""

_OF_ONE_CONNECTION: Final = OF_ONE_CONNECTION
_SCHEMES: Final = frozenset((b"http", b"https"))
_USUAL_METHODS: Final = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"))
_OF_WEBSOCKET: Final = frozenset((b"sec-websocket-key", b"content-length"))

_NAME_BYTES: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
_VALUE_BYTES: Final = b"\t" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
_is_name: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_value: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch
_is_target: Final = re.compile(rb"[\x21-\x7e]+").fullmatch
_is_method: Final = re.compile(rb"[A-Z][A-Z-]{0,31}").fullmatch

_UNPRINTABLE: Final = re.compile(rb"[\x00-\x20\x7f]")


class StreamRequestHeads:
    """Reads the request heads of one connection. `raw` is the head of the last one in HTTP/1.1, b"" if it has none."""

    def __init__(self, client: Client, limits: Limits, fresh_id: Callable[[], bytes]) -> None:
        self._fresh_id = fresh_id
        self.raw = b""
        self.apply(client, limits)

    def apply(self, client: Client, limits: Limits) -> None:
        """Apply a new client and new limits to the next heads."""
        self._limits = limits
        self._head_limit = limits.head
        self._heads = heads_for(client, self._fresh_id)
        self._last: FieldPairs | None = None
        self._others: FieldPairs = ()
        self._authority = self._scheme = b""
        self._has_ended = False
        self._block = b""  # the result for these four, the last ones
        self._method = self._path = b""  # the last valid ones
        self._line = b""  # of `_last`, whose head is `raw`
        self._is_grpc = False

    def read(self, fields: FieldPairs, has_ended: bool) -> Request:
        """Return the request with these fields; `has_ended` if no body follows. Raises `RequestRejected`."""
        if fields is self._last and has_ended == self._has_ended:  # the session has kept equal fields
            return self._of_kind(
                self._heads.request(self._line, self._method, self._path, HTTP11, self._block, self.raw)
            )
        self._last = None
        method = scheme = authority = path = protocol = b""
        count = 0
        for name, value in fields:
            if name == b":path":
                path = value
            elif name == b":method":
                method = value
            elif name == b":authority":
                authority = value
            elif name == b":scheme":
                scheme = value
            elif name == b":protocol":
                protocol = value
            else:
                break
            count += 1
        others = fields[count:]
        if method == b"CONNECT":
            return self._connect(others, authority, scheme, path, protocol)
        if (
            others != self._others
            or authority != self._authority
            or scheme != self._scheme
            or has_ended != self._has_ended
        ):
            self.raw = _for_log(method, path)
            self._block = self._block_of(others, authority, scheme, is_chunked=not has_ended)
            self._is_grpc = has_grpc_type(others)
            self._others, self._authority, self._scheme = others, authority, scheme
            self._has_ended = has_ended
        request = self._of_kind(self._request(method, path, self._block))
        self._last = fields
        return request

    def _of_kind(self, request: Request) -> Request:
        """Mark a request as an RPC of gRPC if its fields say so."""
        if self._is_grpc:
            request.fields.is_grpc = True
        return request

    def oversized(self, fields: FieldPairs) -> RequestRejected:
        """Return the error for a head that is larger than advertised."""
        found = dict(fields[:5])
        self._last = None
        self.raw = _for_log(found.get(b":method", b""), found.get(b":path", b""))
        return RequestRejected(431, "head_too_large", f"at most {self._limits.head} bytes of head")

    def _request(self, method: bytes, path: bytes, block: bytes) -> Request:
        if path != self._path or method != self._method:
            self._validate(method, path)
        self._line = line = b"".join((method, b" ", path, b" HTTP/1.1"))
        self.raw = raw = b"".join((line, block, b"\r\n"))
        if len(raw) > self._head_limit:
            raise RequestRejected(431, "head_too_large", f"at most {self._head_limit} bytes of head")
        return self._heads.request(line, method, path, HTTP11, block, raw)

    def _validate(self, method: bytes, path: bytes) -> None:
        """Refuse a method or a path that is none in HTTP/1.1."""
        limit = self._limits.target
        self.raw = _for_log(method, path[:limit])
        if len(path) > limit:
            raise RequestRejected(414, "target_too_long", f"at most {limit} bytes of target")
        if _is_target(path) is None:
            raise RequestRejected(400, "malformed_request", "a :path with characters that HTTP forbids")
        if method not in _USUAL_METHODS and (_is_method(method) is None or not takes_method(method)):
            raise RequestRejected(400, "malformed_request", "a :method that HTTP/1.1 does not have")
        if path[:1] != b"/" and method != b"CONNECT" and not (path == b"*" and method == b"OPTIONS"):
            raise RequestRejected(400, "bad_target", "the :path must begin with a slash")
        self._method, self._path = method, path

    def _connect(
        self, others: FieldPairs, authority: bytes, scheme: bytes, path: bytes, protocol: bytes
    ) -> Request:
        """Return a CONNECT request (RFC 9113 § 8.5), or one that begins a WebSocket (RFC 8441) as its offer in
        HTTP/1.1."""
        self.raw = _for_log(b"CONNECT", authority)
        if not protocol:
            return self._request(
                b"CONNECT", authority, self._block_of(others, authority, b"", is_chunked=False)
            )
        if protocol.lower() != b"websocket":
            raise RequestRejected(501, "unknown_protocol", "the :protocol of CONNECT may only be websocket")
        kept = tuple(pair for pair in others if pair[0] not in _OF_WEBSOCKET)
        block = self._block_of(kept, authority, scheme, is_chunked=False) + websocket_offer(urandom(16))
        return self._request(b"GET", path, block)

    def _block_of(self, others: FieldPairs, authority: bytes, scheme: bytes, *, is_chunked: bool) -> bytes:
        """Return the fields as a block of HTTP/1.1 (`http/h1/fields.py`). Raises `RequestRejected`."""
        if scheme and scheme not in _SCHEMES:
            raise RequestRejected(400, "bad_scheme", "the :scheme must be http or https")
        lines: list[bytes] = [b"\r\n"]
        if authority:
            _check(b"host", authority)
            lines.append(b"Host: %b\r\n" % authority)
        cookies: list[bytes] = []
        hosts = repeated = 0
        seen: set[tuple[bytes, bytes]] = set()
        for name, value in others:
            if len(value) > MIN_COUNTED_BYTES or len(name) > MIN_COUNTED_BYTES:
                repeated += _repeated_bytes(name, value, seen)
                if repeated > MAX_REPEATED_BYTES:
                    detail = f"at most {MAX_REPEATED_BYTES} bytes of fields that the head has already"
                    raise RequestRejected(431, "head_too_large", detail)
            _check(name, value)
            if name == b"cookie":  # § 8.2.3
                cookies.append(value)
            elif name == b"host":
                hosts += 1
                if hosts > 1 or (authority and value.lower() != authority.lower()):
                    raise RequestRejected(400, "bad_host", "Host must be the same as :authority")
                if not authority:
                    lines.append(b"Host: %b\r\n" % value)
            elif name == b"te":
                if value.lower() != b"trailers":
                    raise RequestRejected(400, "malformed_request", "TE may only be trailers")
                lines.append(b"TE: trailers\r\nConnection: TE\r\n")
            elif name in _OF_ONE_CONNECTION:
                raise RequestRejected(400, "malformed_request", f"HTTP/2 has no field {name.decode()}")
            else:
                is_chunked = is_chunked and name != b"content-length"
                lines.append(b"%b: %b\r\n" % (name, value))
        if cookies:
            lines.append(b"cookie: %b\r\n" % b"; ".join(cookies))
        if is_chunked:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        if len(others) - max(0, len(cookies) - 1) > self._limits.fields:
            raise RequestRejected(431, "too_many_fields", f"at most {self._limits.fields} fields")
        return b"".join(lines)


def _repeated_bytes(name: bytes, value: bytes, seen: set[tuple[bytes, bytes]]) -> int:
    """Return the bytes of a long field, or of its long name, that are in `seen`, and put it there."""
    repeated = 0
    for part in ((name, value), (name, b"")):
        size = len(part[1]) or len(name)
        if size > MIN_COUNTED_BYTES:
            if part in seen:
                repeated += size
            seen.add(part)
    return repeated


def _check(name: bytes, value: bytes) -> None:
    """Refuse what would be something else in HTTP/1.1, whatever the engine has found. An expression takes four times
    as long for each byte as the removal of all that are allowed, which takes longer to begin."""
    if len(name) > MIN_COUNTED_BYTES or len(value) > MIN_COUNTED_BYTES:
        is_legal = (
            not (name.translate(None, _NAME_BYTES) or value.translate(None, _VALUE_BYTES)) and name != b""
        )
    else:
        is_legal = _is_name(name) is not None and _is_value(value) is not None
    if not is_legal:
        raise RequestRejected(400, "malformed_request", "a field with characters that HTTP forbids")


def _for_log(method: bytes, path: bytes) -> bytes:
    """Return a request line that can be logged for a request that is refused."""
    return b"%b %b HTTP/2.0\r\n\r\n" % (_UNPRINTABLE.sub(b"?", method), _UNPRINTABLE.sub(b"?", path))
