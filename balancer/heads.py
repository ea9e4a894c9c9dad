"""Message heads on their way through: pure functions from parsed fields to bytes.

Rule of this file: no I/O and no state but the memo of header names. One pass over the fields decides what is
removed (hop by hop, RFC 9110 § 7.6.1), what is replaced (forwarding fields), how the body is framed (RFC 9112
§ 6), and whether the message may be forwarded at all. Order, case and repetition of all other fields survive.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from balancer.errors import MalformedResponse, RequestRejected

Headers = list[tuple[bytes, bytes]]

MEMO_LIMIT = 4096
"""Spellings of names remembered. Clients choose them, so the memo must be bounded; traffic uses dozens."""

REQUEST_ID_LIMIT = 128
"""Longest X-Request-ID taken over from a client, in bytes (Heroku's router draws the same line)."""


class Framing(Enum):
    """How the end of a body is known (RFC 9112 § 6.3)."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()


class Field(Enum):
    """Fields that are not simply passed on."""

    HOP_BY_HOP = auto()
    CONNECTION = auto()
    CONTENT_LENGTH = auto()
    TRANSFER_ENCODING = auto()
    HOST = auto()
    UPGRADE = auto()
    FORWARDED_FOR = auto()
    FORWARDED_PROTO = auto()
    FORWARDED_HOST = auto()
    FORWARDED = auto()
    REQUEST_ID = auto()


_NONE, _LENGTH, _CHUNKED, _UNTIL_CLOSE = Framing
_HOST, _CONNECTION = Field.HOST, Field.CONNECTION
_CONTENT_LENGTH, _TRANSFER_ENCODING = Field.CONTENT_LENGTH, Field.TRANSFER_ENCODING
"""Names of the hot loops: an attribute of an enum's class costs four times a global."""


class FieldMemo(dict[bytes, Field | None]):
    """What to do with a name as it was spelled; None: pass it on. One lookup per field, no lower-casing."""

    def __init__(self, table: dict[bytes, Field]) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, name: bytes) -> Field | None:
        field = self._table.get(name.lower())
        if len(self) < MEMO_LIMIT:
            self[name] = field
        return field


HOP_BY_HOP = dict.fromkeys((b"keep-alive", b"proxy-connection", b"te"), Field.HOP_BY_HOP)

REQUEST_FIELDS = FieldMemo(
    HOP_BY_HOP
    | {
        b"connection": Field.CONNECTION,
        b"content-length": Field.CONTENT_LENGTH,
        b"transfer-encoding": Field.TRANSFER_ENCODING,
        b"host": Field.HOST,
        b"upgrade": Field.UPGRADE,
        b"x-forwarded-for": Field.FORWARDED_FOR,
        b"x-forwarded-proto": Field.FORWARDED_PROTO,
        b"x-forwarded-host": Field.FORWARDED_HOST,
        b"forwarded": Field.FORWARDED,
        b"x-request-id": Field.REQUEST_ID,
    }
)

RESPONSE_FIELDS = FieldMemo(
    HOP_BY_HOP
    | {
        b"connection": Field.CONNECTION,
        b"content-length": Field.CONTENT_LENGTH,
        b"transfer-encoding": Field.TRANSFER_ENCODING,
        b"upgrade": Field.UPGRADE,
    }
)


class Client(NamedTuple):
    """What is the same for all requests of one connection.

    `address` is the peer's, `authority` the host:port it connected to, `proto` b"http" or b"https";
    `is_trusted` says whether its forwarding fields are believed.
    """

    address: bytes
    authority: bytes
    proto: bytes = b"http"
    is_trusted: bool = False


class RequestHead:
    """A request as parsed; `keep_alive` is the client's wish. Nobody changes it."""

    __slots__ = ("headers", "is_http10", "keep_alive", "method", "target")

    def __init__(
        self, method: bytes, target: bytes, is_http10: bool, keep_alive: bool, headers: Headers
    ) -> None:
        self.method = method
        self.target = target
        self.is_http10 = is_http10
        self.keep_alive = keep_alive
        self.headers = headers


def outgoing_request(request: RequestHead, client: Client, fresh_id: bytes) -> tuple[bytes, Framing, bytes]:
    """Write the head that the worker gets; raises `RequestRejected`. `fresh_id` is used where none came.

    Returns the bytes, the framing of the body, and the request's id.
    """
    target, host = request.target, b""
    if not target.startswith(b"/"):
        target, host = _origin_form(request)
    fields: list[bytes] = []  # four items a field
    special: list[tuple[Field, bytes]] = []
    framing = _NONE
    hosts = 0
    for name, value in request.headers:
        field = REQUEST_FIELDS[name]
        if field is None:
            fields += (name, b": ", value, b"\r\n")
        elif field is _HOST:
            hosts += 1
            host = host or value
            fields += (name, b": ", host, b"\r\n")
        elif field is _CONTENT_LENGTH:
            framing = _LENGTH
            fields += (name, b": ", value, b"\r\n")
        elif field is _TRANSFER_ENCODING:
            framing = _chunked_request(framing, value, request)
            fields += (name, b": ", value, b"\r\n")
        else:
            special.append((field, value))
    if hosts != 1:
        host = _host_for(hosts, host, request, client)
        fields += (b"Host", b": ", host, b"\r\n")
    if special:
        fields, request_id, forwarding = _special_fields(special, fields, client, host)
    else:
        request_id, forwarding = b"", (client.address, client.proto, host)
    request_id = request_id or fresh_id
    head = (
        b"%b %b HTTP/1.1\r\n%b"
        b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n"
        b"Via: 1.1 steelyard\r\nX-Request-ID: %b\r\n\r\n"
    ) % (request.method, target, b"".join(fields), *forwarding, request_id)
    return head, framing, request_id


def _origin_form(request: RequestHead) -> tuple[bytes, bytes]:
    """The target a server takes and the host it names: absolute form overrides Host (RFC 9112 § 3.2.2)."""
    target = request.target
    if target == b"*" and request.method == b"OPTIONS":
        return target, b""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise RequestRejected(400, "bad_target", "the request target must be a path or an http(s) URL")
    end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    if not authority or b"@" in authority:
        raise RequestRejected(400, "bad_target", "the request target's authority is empty or holds userinfo")
    return path if path[:1] == b"/" else b"/" + path, authority


def _host_for(hosts: int, host: bytes, request: RequestHead, client: Client) -> bytes:
    """RFC 9112 § 3.2: exactly one Host; only an HTTP/1.0 client may leave it out."""
    if hosts > 1 or not request.is_http10:
        raise RequestRejected(400, "bad_host", f"a request needs exactly one Host field, got {hosts}")
    return host or client.authority


def _special_fields(
    special: list[tuple[Field, bytes]], fields: list[bytes], client: Client, host: bytes
) -> tuple[list[bytes], bytes, tuple[bytes, bytes, bytes]]:
    """Connection, the request's id and the forwarding fields, which only a trusted client may bring.

    Returns the fields to pass on, the client's request id or b"", and X-Forwarded-For, -Proto and -Host.
    """
    request_id, proto = b"", client.proto
    forwarded_for: list[bytes] = []
    for field, value in special:
        if field is Field.CONNECTION:
            fields = without_nominated(value, fields)
        elif field is Field.REQUEST_ID:
            request_id = value if len(value) <= REQUEST_ID_LIMIT else b""
        elif not client.is_trusted:
            continue
        elif field is Field.FORWARDED_FOR:
            forwarded_for.append(value)
        elif field is Field.FORWARDED_PROTO:
            proto = value
        elif field is Field.FORWARDED_HOST:
            host = value
        elif field is Field.FORWARDED:
            fields += (b"Forwarded", b": ", value, b"\r\n")
    forwarded_for.append(client.address)
    return fields, request_id, (b", ".join(forwarded_for), proto, host)


def _chunked_request(framing: Framing, value: bytes, request: RequestHead) -> Framing:
    """RFC 9112 § 6.1: only `chunked`, once, and never from an HTTP/1.0 client."""
    if request.is_http10:
        raise RequestRejected(400, "bad_framing", "Transfer-Encoding in an HTTP/1.0 request")
    if framing is not Framing.NONE:
        raise RequestRejected(400, "bad_framing", "more than one statement of the body's length")
    if value.strip().lower() != b"chunked":
        raise RequestRejected(501, "unknown_coding", "Transfer-Encoding must be exactly 'chunked'")
    return Framing.CHUNKED


NOT_NOMINATED = frozenset(
    (b"", b"close", b"keep-alive", b"upgrade", b"te", b"host", b"content-length", b"transfer-encoding")
)
"""Connection options that name no field, one that is removed anyway, or one that framing and routing need."""

USUAL_CONNECTIONS = frozenset((b"keep-alive", b"close", b"Keep-Alive", b"Close"))


def without_nominated(connection: bytes, fields: list[bytes]) -> list[bytes]:
    """`fields` (four items each) less those that a Connection field's value declares hop by hop."""
    if connection in USUAL_CONNECTIONS:
        return fields
    named = {option.strip().lower() for option in connection.split(b",")} - NOT_NOMINATED
    if not named:
        return fields
    kept = (fields[at : at + 4] for at in range(0, len(fields), 4) if fields[at].lower() not in named)
    return [part for field in kept for part in field]


def framing_alone(headers: Headers) -> bytes:
    """A head that says of a body what `headers` say, and nothing else; b"" where they announce none."""
    framing = (_CONTENT_LENGTH, _TRANSFER_ENCODING)
    lines = [b"%b: %b\r\n" % (name, value) for name, value in headers if REQUEST_FIELDS[name] in framing]
    return b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\n" % b"".join(lines) if lines else b""


class StatusLines(dict[tuple[int, bytes], bytes]):
    """Status lines as they are written; workers use a handful, so they are remembered, bounded."""

    def __missing__(self, key: tuple[int, bytes]) -> bytes:
        line = b"HTTP/1.1 %d %b\r\n" % key
        if len(self) < MEMO_LIMIT:
            self[key] = line
        return line


STATUS_LINES = StatusLines()

BODILESS_STATUSES = frozenset((204, 304))


def outgoing_response(
    status: int, reason: bytes, headers: Headers, to_head: bool, to_http10: bool, stays: bool
) -> tuple[bytes, Framing]:
    """Write the head that the client gets; raises `MalformedResponse`.

    `to_head`: the request was HEAD; `stays`: the client may send its next request on the same connection.
    Returns the bytes and how the body is framed towards the client. One that ends when the worker closes
    becomes chunked; for an HTTP/1.0 client, as chunked ones do, it ends when we close.
    """
    fields: list[bytes] = []  # four items a field
    framing = _UNTIL_CLOSE
    nominating = b""
    for name, value in headers:
        field = RESPONSE_FIELDS[name]
        if field is None:
            fields += (name, b": ", value, b"\r\n")
        elif field is _CONTENT_LENGTH:
            framing = _LENGTH
            fields += (name, b": ", value, b"\r\n")
        elif field is _TRANSFER_ENCODING:
            framing = _chunked_response(framing, value)
        elif field is _CONNECTION and value not in USUAL_CONNECTIONS:
            nominating += b"," + value
    if nominating:
        fields = without_nominated(nominating, fields)
    if to_head or status < 200 or status in BODILESS_STATUSES:
        framing = _NONE
    elif framing is not _LENGTH:
        framing = _UNTIL_CLOSE if to_http10 else _CHUNKED
    if framing is not _LENGTH or to_http10 or not stays:
        fields.append(b"" if status < 200 else _own_fields(framing, to_http10, stays))
    fields.append(b"\r\n")
    return STATUS_LINES[status, reason] + b"".join(fields), framing


def _chunked_response(framing: Framing, value: bytes) -> Framing:
    if framing is not Framing.UNTIL_CLOSE or value.strip().lower() != b"chunked":
        raise MalformedResponse("Transfer-Encoding must be 'chunked', once, without Content-Length")
    return Framing.CHUNKED


def _own_fields(framing: Framing, to_http10: bool, stays: bool) -> bytes:
    """Our Transfer-Encoding and Connection; keep-alive has to be said to HTTP/1.0 only (RFC 9112 § 9.3)."""
    if framing is Framing.UNTIL_CLOSE or not stays:
        connection = b"Connection: close\r\n"
    else:
        connection = b"Connection: keep-alive\r\n" if to_http10 else b""
    return b"Transfer-Encoding: chunked\r\n" + connection if framing is Framing.CHUNKED else connection
