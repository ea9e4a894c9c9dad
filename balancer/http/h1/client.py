"""Client of a downstream connection: attributes that all requests of one connection share.

All but `read_size` are computed once, when the connection opens.
"""

from __future__ import annotations

import os
from typing import Final

from balancer.config.schema.limits import READ
from balancer.http.h1.internal_fields import InternalFields
from balancer.http.h1.request_hints import HintFields
from balancer.tracing.tracing import Tracing

NO_METHODS: Final[frozenset[bytes]] = frozenset()

HTTP11: Final = b"1.1"
HTTP2: Final = b"2"

OWN_NAME: Final = b"steelyard-%b" % os.urandom(6).hex().encode()
"""Name in Via by which a request that returns is recognised: random, since host and port are internal. The processes of
one balancer share it, as they are forked; another balancer has another one."""


class LastLine:
    """Texts of the last line of the access log about a client, most of which its next line repeats, each beside the
    values that it was formatted from.

    `fields` are those of the head, up to the request id, that `host` and `client` were formatted from; b"" if the next
    line cannot have the same.
    """

    def __init__(self) -> None:
        self.fields = b""
        self.is_http10 = self.has_own_id = False
        self.host = ""
        self.client = ""
        self.asked = ""  # from the end of the time to the request id
        self.method = self.target = b""
        self.end = ""  # of a request that did not fail; "": `asked` holds no more
        self.answer = ""  # from the status on
        self.status = -1
        self.size = self.bytes_in = 0
        self.sample = ""


class Client:
    """Attributes that all requests of one downstream connection share.

    `address` is the peer's, `authority` the host:port it connected to, `proto` b"http" or b"https", `version` that of
    HTTP as in Via (RFC 9110 § 7.6.3), `own_name` the balancer's name there; `tls_version` is as in `TLSv1.3`, ""
    without TLS; `certificate` are the lines of its certificate (RFC 9440), None if workers get none; `is_trusted`: its
    forwarding fields are believed. `fields` are the fields added to its requests, up to the host's name. `internal` are
    field names that are removed from its requests; `adds_forwarded` adds the Forwarded field of RFC 7239; `allowed` are
    the methods it may use of those otherwise refused; `stated` reads request hints (priority, deadline), if these are
    enabled; `tracing` is set while the trace context is propagated. `read_size` is the number of bytes per read of a
    long response to it (`next_size`), `last_line` has texts for its next line in the access log.
    """

    def __init__(
        self,
        address: bytes,
        authority: bytes,
        proto: bytes = b"http",
        is_trusted: bool = False,
        internal: InternalFields | None = None,
        adds_forwarded: bool = False,
        allowed: frozenset[bytes] = NO_METHODS,
        stated: HintFields | None = None,
        tracing: Tracing | None = None,
        version: bytes = HTTP11,
        own_name: bytes = OWN_NAME,
        tls_version: str = "",
        certificate: bytes | None = None,
    ) -> None:
        self.address = address
        self.authority = authority
        self.proto = proto
        self.is_trusted = is_trusted
        self.internal = internal
        self.adds_forwarded = adds_forwarded
        self.allowed = allowed
        self.stated = stated
        self.tracing = tracing
        self.version = version
        self.own_name = own_name
        self.tls_version = tls_version
        self.certificate = certificate
        self.fields = self.forwarding(address, proto)
        self.host_found = (
            b"\r"  # last Host seen, lower-cased as in a search; initially a value no request can have
        )
        self.read_size = READ
        self.host = b""  # the same host as written
        self.last_line: LastLine | None = None

    def forwarding(self, addresses: bytes, proto: bytes) -> bytes:
        """Return the fields that are added to a request, up to the host's name."""
        return b"%bX-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nVia: %b %b\r\nX-Forwarded-Host: " % (
            self.certificate or b"",
            addresses,
            proto,
            self.version,
            self.own_name,
        )

    def forwarded(self, host: bytes, before: bytes) -> bytes:
        """Return the Forwarded line: the elements `before`, and one of this client (RFC 7239 § 4)."""
        node = b'"[%b]"' % self.address if b":" in self.address else self.address
        return b'Forwarded: %bfor=%b;proto=%b;host="%b"\r\n' % (before, node, self.proto, host)

    def sendable_trailers(self, block: bytes) -> bytes:
        """Return the trailers of a request without internal fields."""
        return self.internal.without_in_request(block) if block and self.internal is not None else block

    def visible_trailers(self, block: bytes) -> bytes:
        """Return the trailers of a response without internal fields."""
        return self.internal.without(block) if block and self.internal is not None else block
