"""The head of a request on its way to a worker: pure functions from bytes to bytes.

Rule of this file: no I/O. One regular expression finds the few fields that end here or are rewritten; the rest is one
piece of bytes. What the fields of a head come to does not depend on its request line, and a client mostly repeats its
fields from one request to the next (HPACK, RFC 7541, lives on that): then nothing of them is looked at again.
"""

from __future__ import annotations

import re
from typing import Final

from balancer import upgrades
from balancer.errors import RequestRejected
from balancer.fields import (
    END_OF_HEAD,
    FRAMING,
    HOP_BY_HOP,
    KEPT_FOR_FRAMING,
    NOT_NOMINATED,
    Framing,
    Values,
    connection_options,
    cut,
    found,
    last,
    lines_of,
    without,
)
from balancer.internal_fields import InternalFields

REQUEST_ID_LIMIT: Final = 128
"""Longest X-Request-ID taken over from a client, in bytes (Heroku's router draws the same line)."""

_OF_PROXIES: Final = rb"forwarded|x-forwarded-[^:]*|x-real-ip|x-request-start"
_REWRITTEN: Final = rb"x-request-id|expect"

_SPECIAL: Final = rb"|".join((HOP_BY_HOP, FRAMING, _OF_PROXIES, _REWRITTEN))

_find_special: Final = re.compile(rb"\n(?:%b):" % _SPECIAL).search
_REQUEST_FIELDS: Final = lines_of(rb"host|" + _SPECIAL)

_MAX_FORWARDS: Final = lines_of(b"max-forwards")

_BELIEVED: Final = frozenset((b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"))
"""From a trusted proxy these are added to or taken over; the others of their kind pass as they are."""

_ENDS_HERE: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade", b"x-request-id")
)

_HOST: Final = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)(?::[0-9]*)?"
)
"""RFC 3986 § 3.2.2, without userinfo (RFC 9110 § 4.2.4) and never empty (§ 4.2.1)."""

_HTTP11: Final = b"HTTP/1.1"
_HTTP10: Final = b"HTTP/1.0"

REFUSED_METHODS: Final = frozenset((b"CONNECT", b"TRACE"))
"""Unless they are allowed: one opens a tunnel, the other repeats to a script what it may not read."""

_LOOKED_AT: Final = REFUSED_METHODS | {b"OPTIONS"}
"""Methods whose request is more than its fields."""

NO_METHODS: Final[frozenset[bytes]] = frozenset()

NONE: Final = Framing.NONE
LENGTH: Final = Framing.LENGTH
CHUNKED: Final = Framing.CHUNKED


class Client:
    """What is the same for all requests of one connection.

    `address` is the peer's, `authority` the host:port it connected to, `proto` b"http" or b"https"; `is_trusted` says
    whether its forwarding fields are believed. `fields` is what we add to its requests, up to the host's name.
    `internal` are names that are ours alone and taken from nobody; `says_forwarded` adds RFC 7239's field; `allowed`
    are those of `REFUSED_METHODS` that it may use.
    """

    def __init__(
        self,
        address: bytes,
        authority: bytes,
        proto: bytes = b"http",
        is_trusted: bool = False,
        internal: InternalFields | None = None,
        says_forwarded: bool = False,
        allowed: frozenset[bytes] = NO_METHODS,
    ) -> None:
        self.address = address
        self.authority = authority
        self.proto = proto
        self.is_trusted = is_trusted
        self.internal = internal
        self.says_forwarded = says_forwarded
        self.allowed = allowed
        self.fields = _forwarding(address, proto)

    def forwarded(self, host: bytes) -> bytes:
        """RFC 7239 § 4: one element of Forwarded, as a line, if it is to be said."""
        if not self.says_forwarded:
            return b""
        node = b'"[%b]"' % self.address if b":" in self.address else self.address
        return b'Forwarded: for=%b;proto=%b;host="%b"\r\n' % (node, self.proto, host)


def _forwarding(addresses: bytes, proto: bytes) -> bytes:
    return (b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nVia: 1.1 steelyard\r\nX-Forwarded-Host: ") % (
        addresses,
        proto,
    )


class RequestFields:
    """What the fields of a request come to.

    `outgoing` is what the worker gets between the request line and the value of X-Request-ID. `length` is that of
    the body where `framing` says LENGTH, `keep_alive` the client's wish, `request_id` b"" where none came. `upgrade`
    names the protocols that the client offers to go on with; `is_offer`: its connection may go on in another.
    """

    def __init__(
        self,
        outgoing: bytes,
        request_id: bytes = b"",
        framing: Framing = NONE,
        length: int = 0,
        keep_alive: bool = True,
        is_http10: bool = False,
        upgrade: bytes = b"",
    ) -> None:
        self.outgoing = outgoing
        self.request_id = request_id
        self.framing = framing
        self.length = length
        self.keep_alive = keep_alive
        self.is_http10 = is_http10
        self.has_body = framing is CHUNKED or length > 0
        self.spoils_parser = self.has_body  # llhttp expects other bytes than we do to follow the head
        self.upgrade = upgrade
        self.is_offer = bool(upgrade)


class Request:
    """A request on its way: what was asked, the `head` that the worker gets, `id`, which X-Request-ID says, and
    `raw`, the head as it came."""

    def __init__(
        self, method: bytes, target: bytes, head: bytes, request_id: bytes, fields: RequestFields, raw: bytes
    ) -> None:
        self.method = method
        self.target = target
        self.head = head
        self.id = request_id
        self.fields = fields
        self.raw = raw


def outgoing_request(raw: bytes, client: Client, fresh_id: bytes) -> Request:
    """The request that one head asks for. Raises `RequestRejected`."""
    return RequestHeads(client).outgoing(raw, fresh_id)


class RequestHeads:
    """The heads of one connection's requests."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._block = b""
        self._fields = RequestFields(b"")  # what `_block`, the last one, came to

    def outgoing(self, raw: bytes, fresh_id: bytes) -> Request:
        """The request that a whole head, as it came, asks for. Raises `RequestRejected`.

        `fresh_id` is used where no id came.
        """
        end = raw.find(b"\r\n")
        line = raw[:end]
        block = raw[end:-2]
        parts = line.split(b" ")
        if len(parts) != 3:
            raise RequestRejected(400, "bad_request_line", "must be: method, target, version")
        method = parts[0]
        target = parts[1]
        if target.find(b"#") >= 0:  # RFC 9112 § 3.2: a fragment is the client's own
            raise RequestRejected(400, "bad_target", "the request target must not have a fragment")
        if parts[2] == _HTTP11 and target.startswith(b"/") and method not in _LOOKED_AT:
            if block != self._block:
                self._fields = request_fields(block, self._client)
                self._block = block
            fields = self._fields
        else:
            target, fields = _unusual(method, target, parts[2], block, self._client)
            line = b"%b %b HTTP/1.1" % (method, target)
        request_id = fields.request_id or fresh_id
        head = b"".join((line, fields.outgoing, request_id, END_OF_HEAD))
        return Request(method, target, head, request_id, fields, raw)

    def forget(self) -> None:
        """An idle connection need not hold what it may never use."""
        self._block = b""


def _unusual(
    method: bytes, target: bytes, version: bytes, block: bytes, client: Client
) -> tuple[bytes, RequestFields]:
    """A request line other than most."""
    if version not in (_HTTP11, _HTTP10):
        raise RequestRejected(505, "bad_version", "HTTP/1.0 and HTTP/1.1 are spoken here")
    if method in REFUSED_METHODS and method not in client.allowed:
        raise RequestRejected(405, "method_not_allowed", f"{method.decode()} is not forwarded")
    target, authority = _origin_form(method, target)
    if method in _LOOKED_AT:
        block = _one_hop_further(block)
    fields = _SpecialFields(block, version == _HTTP10, client, authority).come_to()
    if method in REFUSED_METHODS and fields.has_body:  # RFC 9110 §§ 9.3.6, 9.3.8
        raise RequestRejected(400, "bad_framing", f"{method.decode()} has no body")
    if method == b"CONNECT":
        fields.is_offer = True
    return target, fields


def _one_hop_further(block: bytes) -> bytes:
    """RFC 9110 § 7.6.2: OPTIONS and TRACE may count how far they go."""
    for _, value, (start, end) in found(_MAX_FORWARDS, block):
        if not value.isdigit():
            raise RequestRejected(400, "bad_max_forwards", "Max-Forwards must be a number")
        if not int(value):
            raise RequestRejected(405, "max_forwards", "Max-Forwards is used up: this goes no further")
        return b"%b\r\nMax-Forwards: %d%b" % (block[:start], int(value) - 1, block[end:])
    return block


def _origin_form(method: bytes, target: bytes) -> tuple[bytes, bytes]:
    """The target a server takes, and the authority that an absolute one names (RFC 9112 § 3.2.2); CONNECT names no more
    than that (§ 3.2.3)."""
    if method == b"CONNECT":
        if not upgrades.is_authority(target):
            raise RequestRejected(400, "bad_target", "CONNECT takes host:port")
        return target, target
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return target, b""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise RequestRejected(400, "bad_target", "the request target must be a path or an http(s) URL")
    end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    if not _HOST.fullmatch(authority):
        raise RequestRejected(400, "bad_target", "the request target's authority must be host or host:port")
    if not path and method == b"OPTIONS":
        return b"*", authority  # RFC 9112 § 3.2.4
    return path if path.startswith(b"/") else b"/" + path, authority


def request_fields(block: bytes, client: Client) -> RequestFields:
    """What the fields of an HTTP/1.1 request in origin form come to. Raises `RequestRejected`."""
    lower = block.lower()
    if client.internal is None and _find_special(lower) is None:
        at = lower.find(b"\nhost:") + 6
        if at > 5 and lower.find(b"\nhost:", at) < 0:  # nothing to take out, only to add
            host = block[at : block.find(b"\r", at)].strip()
            _check_host(host)
            return RequestFields(_with_host(block, client, client.fields, host, host))
    return _SpecialFields(block, False, client, b"").come_to()


def _with_host(block: bytes, client: Client, forwarding: bytes, said: bytes, host: bytes) -> bytes:
    """The outgoing fields. `said` is the host that X-Forwarded-Host tells, `host` the one we were asked for."""
    return b"%b%b%b\r\n%bX-Request-ID: " % (block, forwarding, said, client.forwarded(host))


def _check_host(host: bytes) -> None:
    if not _HOST.fullmatch(host):
        raise RequestRejected(400, "bad_host", "Host must be host or host:port")


class _SpecialFields:
    """Fields that are not simply passed on, and `block` without those that end here."""

    def __init__(self, block: bytes, is_http10: bool, client: Client, authority: bytes) -> None:
        self.client = client
        self.is_http10 = is_http10
        self.values: Values = {}
        cuts: list[tuple[int, int]] = []
        for name, value, span in found(_REQUEST_FIELDS, block):
            self.values.setdefault(name, []).append(value)
            if self._ends_here(name):
                cuts.append(span)
        self.options = connection_options(self.values)
        self.host = self._host(authority)
        self.block = without(self.options, cut(block, cuts), keep=NOT_NOMINATED)
        if client.internal is not None:
            self.block = client.internal.without(self.block)
        if authority or b"host" not in self.values:
            self.block = b"\r\nHost: " + self.host + without([b"host"], self.block)

    def _ends_here(self, name: bytes) -> bool:
        if name in KEPT_FOR_FRAMING:
            return False
        if name == b"expect":
            return self.is_http10  # RFC 9110 § 10.1.1: from HTTP/1.0 it means nothing
        if name in _ENDS_HERE or name in _BELIEVED:
            return True
        return not self.client.is_trusted

    def come_to(self) -> RequestFields:
        """All of it together. Raises `RequestRejected`."""
        framing, length = self._framing()
        self._check_expectation()
        is_http10, options = self.is_http10, self.options
        keep_alive = b"keep-alive" in options if is_http10 else True
        request_id = last(self.values, b"x-request-id", b"")
        may_switch = not (is_http10 or framing is CHUNKED or length)  # RFC 9110 § 7.8
        upgrade = upgrades.offered(self.values, options) if may_switch else b""
        fields = RequestFields(
            self._outgoing(upgrade),
            request_id if len(request_id) <= REQUEST_ID_LIMIT else b"",
            framing,
            length,
            keep_alive and b"close" not in options,
            is_http10,
            upgrade,
        )
        if b"proxy-connection" in self.values:  # to llhttp another name for Connection, to RFC 9110 none
            fields.spoils_parser = True
        return fields

    def _host(self, authority: bytes) -> bytes:
        """RFC 9112 § 3.2: exactly one Host, unless from HTTP/1.0; an absolute target's authority replaces it."""
        hosts = self.values.get(b"host", [])
        if len(hosts) > 1 or not (hosts or self.is_http10):
            raise RequestRejected(
                400, "bad_host", f"a request needs exactly one Host field, got {len(hosts)}"
            )
        if hosts:
            _check_host(hosts[0])
        return authority or (hosts[0] if hosts else self.client.authority)

    def _framing(self) -> tuple[Framing, int]:
        """RFC 9112 § 6: one statement of the length; only `chunked`, and never from an HTTP/1.0 client."""
        lengths = self.values.get(b"content-length", [])
        codings = self.values.get(b"transfer-encoding", [])
        if len(lengths) + len(codings) > 1:
            raise RequestRejected(400, "bad_framing", "more than one statement of the body's length")
        if codings:
            return self._coding(codings[0])
        if not lengths:
            return NONE, 0
        if not lengths[0].isdigit() or len(lengths[0]) > 18:
            raise RequestRejected(400, "bad_framing", "Content-Length must be a number of bytes")
        return LENGTH, int(lengths[0])

    def _coding(self, coding: bytes) -> tuple[Framing, int]:
        if self.is_http10:
            raise RequestRejected(400, "bad_framing", "Transfer-Encoding in an HTTP/1.0 request")
        if coding.lower() != b"chunked":
            raise RequestRejected(501, "unknown_coding", "Transfer-Encoding must be exactly 'chunked'")
        return CHUNKED, 0

    def _check_expectation(self) -> None:
        """RFC 9110 § 10.1.1: there is one expectation, and we pass it on."""
        for value in [] if self.is_http10 else self.values.get(b"expect", []):
            if value.lower() != b"100-continue":
                raise RequestRejected(417, "unknown_expectation", "Expect may only be 100-continue")

    def _outgoing(self, upgrade: bytes) -> bytes:
        """The block, what we know of the client, and what a trusted proxy says of the client before it."""
        client = self.client
        believed = self.values if client.is_trusted else {}
        addresses = b", ".join([*believed.get(b"x-forwarded-for", []), client.address])
        forwarding = _forwarding(addresses, last(believed, b"x-forwarded-proto", client.proto))
        said = last(believed, b"x-forwarded-host", self.host)
        block = self.block + self._trailers_wanted() + upgrades.fields(upgrade)
        return _with_host(block, client, forwarding, said, self.host)

    def _trailers_wanted(self) -> bytes:
        """RFC 9110 § 10.1.4: TE concerns one connection; we take trailers, and pass them on to who takes them."""
        codings = [
            coding.strip() for value in self.values.get(b"te", []) for coding in value.lower().split(b",")
        ]
        if b"te" in self.options and b"trailers" in codings:
            return b"TE: trailers\r\nConnection: TE\r\n"
        return b""
