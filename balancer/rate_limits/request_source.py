"""Which bucket a request takes a token from: one for all requests, or one for each client, request key or value of a
field."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from balancer.http.h1.client import Client
from balancer.http.h1.fields import only_value_of
from balancer.http.h1.request_head import KeyOf, Request
from balancer.syntax.networks import parsed

Trusts = Callable[[str], bool]
"""Returns whether an address is one of `trusted_proxies`."""

V6_BYTES: Final = 8
"""Bytes of an IPv6 address that count, a /64: a client has as many addresses in its own as it wants (RFC 6177)."""

MAX_HOPS: Final = 32
"""Trusted proxies and empty elements in a row that are looked behind: ten times any real chain, and 0.02 ms."""

MAX_NODE_BYTES: Final = 64
"""Longest node that may be an address, with brackets, zone and port: others are names, which are not cached."""

_FORWARDED_FOR: Final = re.compile(rb"\n(?i:x-forwarded-for):[ \t]*([^\r]*)").findall
_NODE: Final = re.compile(rb"\[([^\]]*)\](?::\d+)?|([^:]*)(?::\d+)?")
"""An address in brackets or without colons, with or without a port."""


def client_of(request: Request, client: Client, trusts: Trusts) -> bytes:
    """Return the client's network: its IPv4 address or the /64 of its IPv6 address."""
    address = address_of(request, client, trusts)
    return address if len(address) > MAX_NODE_BYTES else network_of(address)


def address_of(request: Request, client: Client, trusts: Trusts) -> bytes:
    """Return the client's address, or what a trusted proxy has named it by.

    From a trusted proxy it is the last address in X-Forwarded-For that is not a trusted proxy itself. What precedes it
    was written by the client and proves nothing; more than `MAX_HOPS` trusted ones are not looked behind.
    """
    if not client.is_trusted:
        return client.address
    address, nodes = client.address, b",".join(_FORWARDED_FOR(request.raw))
    end = len(nodes)
    for _ in range(MAX_HOPS):
        if end <= 0:
            break
        at = nodes.rfind(b",", 0, end)
        node, end = nodes[at + 1 : end].strip(), at
        if not node:
            continue
        if len(node) > MAX_NODE_BYTES:
            return node
        found = _NODE.fullmatch(node)
        address = node if found is None else found[1] or found[2] or node
        if not trusts(address.decode("latin-1")):
            break
    return address


@lru_cache(maxsize=4096)
def network_of(address: bytes) -> bytes:
    """Return the bytes of an IPv4 address, those of an IPv6 address that count, or a name as it is."""
    peer = parsed(address.decode("latin-1"))
    if peer is None:
        return address
    return peer.packed[:V6_BYTES] if isinstance(peer, IPv6Address) else peer.packed


class RequestSource:
    """Finds which bucket a request takes a token from.

    `by` is `all`, `client`, `key` or `header`, then of the field `header`. Requests without a key or field, and with
    several values of it, count by client: neither must be a way around the limit. `trusts` is replaced when
    `trusted_proxies` may have changed.
    """

    def __init__(self, by: str, header: str | None, trusts: Trusts) -> None:
        self.trusts = trusts
        self._by = by
        self._value_in = only_value_of(header.encode()) if header is not None else None

    def of(self, request: Request, client: Client, key_of: KeyOf | None) -> bytes:
        """Return the source of a request. Those of different kinds never equal each other."""
        if self._by == "all":
            return b""
        if self._value_in is not None:
            value = self._value_in(request.head)
            if value is not None:
                return b"h" + value
        elif self._by == "key" and key_of is not None:
            key = request.key_by(key_of, client)
            if key is not None:
                return b"k" + key.encode("latin-1", "replace")
        return b"c" + client_of(request, client, self.trusts)
