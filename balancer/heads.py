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


class RequestHead(NamedTuple):
    """A request as parsed. `keep_alive` is the client's wish."""

    method: bytes
    target: bytes
    is_http10: bool
    keep_alive: bool
    headers: Headers


class OutgoingRequest(NamedTuple):
    """What goes to the worker."""

    head: bytes
    framing: Framing
    request_id: bytes


def outgoing_request(request: RequestHead, client: Client, fresh_id: bytes) -> OutgoingRequest:
    """Write the head that the worker gets; raises `RequestRejected`. `fresh_id` is used where none came."""
    target, host = _origin_form(request)
    fields: list[bytes] = []  # four items a field
    special: list[tuple[Field, bytes]] = []
    framing = Framing.NONE
    hosts = 0
    for name, value in request.headers:
        field = REQUEST_FIELDS[name]
        if field is None:
            fields += (name, b": ", value, b"\r\n")
        elif field is Field.HOST:
            hosts += 1
            host = host or value
            fields += (name, b": ", host, b"\r\n")
        elif field is Field.CONTENT_LENGTH:
            framing = Framing.LENGTH
            fields += (name, b": ", value, b"\r\n")
        elif field is Field.TRANSFER_ENCODING:
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
    return OutgoingRequest(head, framing, request_id)


def _origin_form(request: RequestHead) -> tuple[bytes, bytes]:
    """The target a server takes and the host it names: absolute form overrides Host (RFC 9112 § 3.2.2)."""
    target = request.target
    if target[:1] == b"/":
        return target, b""
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


def without_nominated(connection: bytes, fields: list[bytes]) -> list[bytes]:
    """`fields` (four items each) less those that a Connection field's value declares hop by hop."""
    named = {option.strip().lower() for option in connection.split(b",")} - NOT_NOMINATED
    if not named:
        return fields
    kept = (fields[at : at + 4] for at in range(0, len(fields), 4) if fields[at].lower() not in named)
    return [part for field in kept for part in field]


def is_upgrade_with_body(request: RequestHead) -> bool:
    """Asked of upgrades only. With a body it is ambiguous where the new protocol begins; llhttp skips it."""
    fields = {REQUEST_FIELDS[name] for name, _ in request.headers}
    return Field.CONTENT_LENGTH in fields or Field.TRANSFER_ENCODING in fields


BODILESS_STATUSES = frozenset((204, 304))


class Reader(NamedTuple):
    """Who gets a response, as far as its head depends on that."""

    asked_head: bool
    is_http10: bool
    stays: bool


class OutgoingResponse(NamedTuple):
    """What goes to the client, how the worker frames the body, and how the client gets it."""

    head: bytes
    framing: Framing
    framing_to_client: Framing


def outgoing_response(status: int, reason: bytes, headers: Headers, reader: Reader) -> OutgoingResponse:
    """Write the head that the client gets; raises `MalformedResponse`.

    A body that ends when the worker closes becomes chunked; for an HTTP/1.0 client it ends when we close.
    """
    fields: list[bytes] = []  # four items a field
    framing = Framing.UNTIL_CLOSE
    connection = b""
    for name, value in headers:
        field = RESPONSE_FIELDS[name]
        if field is None:
            fields += (name, b": ", value, b"\r\n")
        elif field is Field.CONTENT_LENGTH:
            framing = Framing.LENGTH
            fields += (name, b": ", value, b"\r\n")
        elif field is Field.TRANSFER_ENCODING:
            framing = _chunked_response(framing, value)
        elif field is Field.CONNECTION:
            connection += b"," + value
    if connection:
        fields = without_nominated(connection, fields)
    if reader.asked_head or status < 200 or status in BODILESS_STATUSES:
        framing = Framing.NONE
    to_client = _framing_to_client(framing, reader)
    own = b"" if status < 200 else _own_fields(to_client, reader)
    head = b"HTTP/1.1 %d %b\r\n%b%b\r\n" % (status, reason, b"".join(fields), own)
    return OutgoingResponse(head, framing, to_client)


def _chunked_response(framing: Framing, value: bytes) -> Framing:
    if framing is not Framing.UNTIL_CLOSE or value.strip().lower() != b"chunked":
        raise MalformedResponse("Transfer-Encoding must be 'chunked', once, without Content-Length")
    return Framing.CHUNKED


def _framing_to_client(framing: Framing, reader: Reader) -> Framing:
    if framing is Framing.NONE or framing is Framing.LENGTH:
        return framing
    return Framing.UNTIL_CLOSE if reader.is_http10 else Framing.CHUNKED


def _own_fields(to_client: Framing, reader: Reader) -> bytes:
    """Our Transfer-Encoding and Connection; keep-alive has to be said to HTTP/1.0 only (RFC 9112 § 9.3)."""
    own = b"Transfer-Encoding: chunked\r\n" if to_client is Framing.CHUNKED else b""
    if not reader.stays or to_client is Framing.UNTIL_CLOSE:
        return own + b"Connection: close\r\n"
    return own + b"Connection: keep-alive\r\n" if reader.is_http10 else own
