"""Parse and rewrite the fields of a request: framing, Host, hop-by-hop and forwarding fields.

Pure functions, no I/O. One regular expression finds the few fields that are removed or rewritten; the rest is copied as
one piece of bytes.
"""

from __future__ import annotations

from typing import Final

from balancer.errors import RequestRejected
from balancer.http.h1 import upgrades
from balancer.http.h1.client import Client
from balancer.http.h1.fields import (
    KEPT_FOR_FRAMING,
    NOT_NOMINATED,
    OF_CERTIFICATE,
    SPECIAL,
    Framing,
    Values,
    any_of,
    connection_options,
    cut,
    found,
    last,
    lines_of,
    restated,
    without,
)
from balancer.http.h1.request_hints import RequestHints
from balancer.syntax.field_names import in_cgi
from balancer.syntax.urls import MAX_HOST_BYTES, is_authority

REQUEST_ID_LIMIT: Final = 128
"""Maximum bytes of an X-Request-ID taken over from a client (Heroku's router has the same limit)."""

_REQUEST_FIELDS: Final = lines_of(any_of(SPECIAL, as_in_cgi=True))
_find_special: Final = _REQUEST_FIELDS.findall

_BELIEVED: Final = frozenset((b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"))
"""Forwarding fields extended or taken over from a trusted proxy; its others pass unchanged."""

_ENDS_HERE: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade", b"x-request-id")
)

CONTENT_LENGTH: Final = b"\r\nContent-Length: "
MOST_DIGITS: Final = 18
"""Digits of a Content-Length: more may not fit into 64 bits."""

NONE: Final = Framing.NONE
LENGTH: Final = Framing.LENGTH
CHUNKED: Final = Framing.CHUNKED


class RequestFields:
    """Result of parsing the fields of a request.

    `outgoing` is the head sent to the worker between the request line and the value of X-Request-ID. `length` is that
    of the body where `framing` is LENGTH; `keep_alive` is the client's wish; `request_id` is b"" if none came.
    `upgrade` lists the protocols that the client offers to switch to; `is_offer`: the connection may switch protocols.
    `stated` are the request's hints, if these are enabled. `is_grpc`: the request is an RPC of gRPC.
    """

    stated: RequestHints | None = None
    is_grpc = False

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
        self.needs_new_parser = (
            self.has_body
        )  # llhttp expects other bytes to follow the head than this parser
        self.upgrade = upgrade
        self.is_offer = bool(upgrade)

    def of_length(self, digits: bytes) -> RequestFields:
        """Return the same fields with another Content-Length, which is not 0."""
        outgoing = self.outgoing
        at = outgoing.find(CONTENT_LENGTH) + len(CONTENT_LENGTH)
        outgoing = b"".join((outgoing[:at], digits, outgoing[outgoing.find(b"\r", at) :]))
        fields = RequestFields(outgoing, self.request_id, LENGTH, int(digits), self.keep_alive)
        fields.stated = self.stated
        return fields


def request_fields(block: bytes, client: Client) -> RequestFields:
    """Parse the fields of an HTTP/1.1 request in origin form. Raises `RequestRejected`."""
    find = _find_special if client.internal is None else client.internal.find_special
    special: list[tuple[bytes, bytes]] = find(block.lower())
    digits = b""
    if len(special) == 2:
        digits = _plain_length(special[0], block) or _plain_length(special[1], block)
    if len(special) == 1 or digits:
        name, host = special[1 if digits and special[0][0] == b"content-length" else 0]
        if name == b"host":  # nothing to remove, only to add
            if host != client.host_found:
                _cache_host(client, host, block)
            host = client.host
            outgoing = _with_host(block, client, client.fields, host, host)
            return RequestFields(outgoing, b"", LENGTH, int(digits)) if digits else RequestFields(outgoing)
    return SpecialFields(block, False, client, b"").parse()


def _plain_length(field: tuple[bytes, bytes], block: bytes) -> bytes:
    """Return the digits of a Content-Length that is not 0 and is spelt as usual; b"" for other fields."""
    name, digits = field
    if (
        name != b"content-length"
        or not digits.isdigit()
        or digits.startswith(b"0")
        or len(digits) > MOST_DIGITS
    ):
        return b""
    return digits if block.find(b"%b%b\r" % (CONTENT_LENGTH, digits)) >= 0 else b""


def _cache_host(client: Client, found_host: bytes, block: bytes) -> None:
    """Validate and cache a Host other than the last one. Raises `RequestRejected`."""
    at = block.lower().find(b"\nhost:") + 6
    host = block[at : block.find(b"\r", at)].strip()
    _check_host(host)
    client.host_found = found_host
    client.host = host


def _with_host(
    block: bytes, client: Client, forwarding: bytes, said: bytes, host: bytes, before: bytes = b""
) -> bytes:
    """Return the outgoing fields; `said` is the value of X-Forwarded-Host, `host` the requested host, `before` what
    Forwarded begins with."""
    if not client.adds_forwarded:
        return b"".join((block, forwarding, said, b"\r\nX-Request-ID: "))
    return b"".join((block, forwarding, said, b"\r\n", client.forwarded(host, before), b"X-Request-ID: "))


_MOST_NODES: Final = 16
"""Addresses of X-Forwarded-For, the last ones, that Forwarded repeats: a list may have thousands."""


def _as_forwarded(values: Values) -> bytes:
    """Return elements of Forwarded that say what X-Forwarded-* of a trusted proxy do, each with a comma behind it (RFC
    7239 § 7.4). Scheme and host are those of the client."""
    nodes = b",".join(values.get(b"x-forwarded-for", ())).rsplit(b",", _MOST_NODES)[-_MOST_NODES:]
    elements = [_parameter(b"for", node) for node in nodes]
    for name in (b"proto", b"host"):
        stated = _parameter(name, last(values, b"x-forwarded-" + name, b"").partition(b",")[0])
        elements[0] += b";" + stated if elements[0] and stated else stated
    return b"".join([element + b", " for element in elements if element])


def _parameter(name: bytes, value: bytes) -> bytes:
    """Return a parameter of Forwarded, b"" without a value. Bytes that no address, scheme or host has, and that would
    end a quoted value or need an escape, are left out."""
    value = value.translate(None, b' \t"\\')
    if name == b"for" and value.count(b":") > 1 and not value.startswith(b"["):
        value = b"[%b]" % value
    if value.translate(None, b".-_").isalnum():
        return b"%b=%b" % (name, value)
    return b'%b="%b"' % (name, value) if value else b""


def _check_host(host: bytes) -> None:
    if not is_authority(host):
        raise RequestRejected(
            400, "bad_host", f"Host must be host or host:port, with a host of at most {MAX_HOST_BYTES} bytes"
        )


def _is_misspelt(name: bytes, plain: bytes) -> bool:
    """Return whether a trusted proxy's field can be confused with another one; `plain` is its name `in_cgi`.

    A field such as X-Forwarded-Some_Thing is the proxy's own and passes.
    """
    return name != plain and (plain in _BELIEVED or not name.startswith(b"x-forwarded-"))


class SpecialFields:
    """General path: parse the special fields, and `block` without those that are removed."""

    def __init__(self, block: bytes, is_http10: bool, client: Client, authority: bytes) -> None:
        self.client = client
        self.is_http10 = is_http10
        self.values: Values = {}
        self._length_line = b""  # Content-Length or Transfer-Encoding as received
        cuts: list[tuple[int, int]] = []
        internal = client.internal
        for name, value, span in found(_REQUEST_FIELDS if internal is None else internal.special, block):
            self.values.setdefault(name, []).append(value)
            if self._ends_here(name) or (internal is not None and internal.has(name)):
                cuts.append(span)
            elif name == b"content-length" or name == b"transfer-encoding":
                self._length_line = block[span[0] + 2 : span[1]]
        self.options = connection_options(self.values)
        self.host = self._host(authority)
        self.block = without(self.options, cut(block, cuts), keep=NOT_NOMINATED)
        if authority or b"host" not in self.values:
            self.block = b"\r\nHost: " + self.host + without([b"host"], self.block)

    def _ends_here(self, name: bytes) -> bool:
        if name in KEPT_FOR_FRAMING or name == b"via":
            return False
        if name == b"expect":
            return self.is_http10  # RFC 9110 § 10.1.1: from HTTP/1.0 it means nothing
        if name in _ENDS_HERE or name in _BELIEVED:
            return True
        plain = in_cgi(name)
        if plain in OF_CERTIFICATE and self.client.certificate is not None:
            return True
        if plain in KEPT_FOR_FRAMING:
            raise RequestRejected(
                400, "bad_framing", "Content-Length and Transfer-Encoding are written with a hyphen"
            )
        return not self.client.is_trusted or _is_misspelt(name, plain)

    def parse(self) -> RequestFields:
        """Return the parsed fields. Raises `RequestRejected`."""
        self._check_loop()
        framing, length = self._framing()
        if framing is not NONE and not self._is_plain(framing):
            self.block = restated(self.block, framing, length)
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
        if b"proxy-connection" in self.values:  # llhttp takes it for Connection, RFC 9110 does not
            fields.needs_new_parser = True
        return fields

    def _host(self, authority: bytes) -> bytes:
        """Validate Host and return the host: exactly one Host, unless in HTTP/1.0; an absolute target's authority
        replaces it (RFC 9112 § 3.2)."""
        hosts = self.values.get(b"host", [])
        if len(hosts) > 1 or not (hosts or self.is_http10):
            raise RequestRejected(
                400, "bad_host", f"a request needs exactly one Host field, got {len(hosts)}"
            )
        if hosts:
            _check_host(hosts[0])
        return authority or (hosts[0] if hosts else self.client.authority)

    def _framing(self) -> tuple[Framing, int]:
        """Validate the framing and return it with the length: at most one Content-Length or Transfer-Encoding, the
        latter only `chunked` and never in HTTP/1.0 (RFC 9112 § 6)."""
        lengths = self.values.get(b"content-length", [])
        codings = self.values.get(b"transfer-encoding", [])
        if len(lengths) + len(codings) > 1:
            raise RequestRejected(400, "bad_framing", "more than one statement of the body's length")
        if codings:
            return self._coding(codings[0])
        if not lengths:
            return NONE, 0
        if not lengths[0].isdigit() or len(lengths[0]) > MOST_DIGITS:
            raise RequestRejected(400, "bad_framing", "Content-Length must be a number of bytes")
        return LENGTH, int(lengths[0])

    def _is_plain(self, framing: Framing) -> bool:
        """Return whether the Content-Length or Transfer-Encoding line is canonical already."""
        if framing is CHUNKED:
            return self._length_line == b"Transfer-Encoding: chunked"
        digits = self.values[b"content-length"][0]
        return self._length_line == b"Content-Length: " + digits and (digits[:1] != b"0" or digits == b"0")

    def _coding(self, coding: bytes) -> tuple[Framing, int]:
        if self.is_http10:
            raise RequestRejected(400, "bad_framing", "Transfer-Encoding in an HTTP/1.0 request")
        if coding.lower() != b"chunked":
            raise RequestRejected(501, "unknown_coding", "Transfer-Encoding must be exactly 'chunked'")
        return CHUNKED, 0

    def _check_loop(self) -> None:
        """Reject a request that this balancer has forwarded before (RFC 9110 § 7.6.3)."""
        for value in self.values.get(b"via", ()):
            if self.client.own_name in value:
                raise RequestRejected(
                    508,
                    "loop",
                    "this balancer has forwarded the request before: one of its endpoints leads to itself",
                )

    def _check_expectation(self) -> None:
        """Reject expectations other than 100-continue, which is passed on (RFC 9110 § 10.1.1)."""
        for value in [] if self.is_http10 else self.values.get(b"expect", []):
            if value.lower() != b"100-continue":
                raise RequestRejected(417, "unknown_expectation", "Expect may only be 100-continue")

    def _outgoing(self, upgrade: bytes) -> bytes:
        """Return the outgoing fields: the block, Via and forwarding fields, extended if the client is a trusted
        proxy."""
        client = self.client
        believed = self.values if client.is_trusted else {}
        addresses = b", ".join([*believed.get(b"x-forwarded-for", []), client.address])
        proto = last(believed, b"x-forwarded-proto", client.proto)
        ours = client.forwarding(addresses, proto)
        said = last(believed, b"x-forwarded-host", self.host)
        block = self.block + self._trailers_wanted() + upgrades.fields(upgrade)
        before = _as_forwarded(believed) if b"forwarded" not in self.values and client.adds_forwarded else b""
        return _with_host(block, client, ours, said, self.host, before)

    def _trailers_wanted(self) -> bytes:
        """Return the TE lines for the worker. TE is hop-by-hop; trailers are accepted, and passed on if the client
        accepts them (RFC 9110 § 10.1.4)."""
        codings = [
            coding.strip() for value in self.values.get(b"te", []) for coding in value.lower().split(b",")
        ]
        if b"te" in self.options and b"trailers" in codings:
            return b"TE: trailers\r\nConnection: TE\r\n"
        return b""
