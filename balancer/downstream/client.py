"""Whose requests these are: what is the same for all of one connection.

All but `read_size` is worked out once, when the connection begins.
"""

from __future__ import annotations

from typing import Final

from balancer.http1.internal_fields import InternalFields
from balancer.http1.request_hints import HintFields
from balancer.upstream.bounded_reader import READ

NO_METHODS: Final[frozenset[bytes]] = frozenset()


class Client:
    """What is the same for all requests of one connection.

    `address` is the peer's, `authority` the host:port it connected to, `proto` b"http" or b"https"; `is_trusted` says
    whether its forwarding fields are believed. `fields` is what we add to its requests, up to the host's name.
    `internal` are names that are ours alone and taken from nobody; `says_forwarded` adds RFC 7239's field; `allowed`
    are those of the methods otherwise refused that it may use; `stated` finds what its requests say of themselves,
    where that is asked. `read_size` is the number of bytes read at once of a long response to it (`next_size`).
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
        stated: HintFields | None = None,
    ) -> None:
        self.address = address
        self.authority = authority
        self.proto = proto
        self.is_trusted = is_trusted
        self.internal = internal
        self.says_forwarded = says_forwarded
        self.allowed = allowed
        self.stated = stated
        self.fields = forwarding(address, proto)
        self.host_found = (
            b"\r"  # the host last asked for, in lower case, as a search finds it; at first what none is
        )
        self.read_size = READ
        self.host = b""  # and as it was written

    def forwarded(self, host: bytes) -> bytes:
        """RFC 7239 § 4: one element of Forwarded, as a line."""
        node = b'"[%b]"' % self.address if b":" in self.address else self.address
        return b'Forwarded: for=%b;proto=%b;host="%b"\r\n' % (node, self.proto, host)


def forwarding(addresses: bytes, proto: bytes) -> bytes:
    return (b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nVia: 1.1 steelyard\r\nX-Forwarded-Host: ") % (
        addresses,
        proto,
    )
