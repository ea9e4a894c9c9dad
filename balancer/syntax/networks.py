"""Match peer addresses against lists of networks.

Pure. An IPv4 peer of a socket that listens for IPv4 and IPv6 has a mapped address (RFC 4291 § 2.5.5.2), and a
link-local address has a zone: both are normalised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network

MAPPED = "::ffff:"
"""Prefix of an IPv4 peer's address on a socket that listens for IPv6 (RFC 4291 § 2.5.5.2)."""


THIS_MACHINE = "127.0.0.1"
"""What counts as the address of a client on a Unix socket, which has none."""


def is_within(address: str, networks: tuple[Network, ...]) -> bool:
    """Return whether `address` is in one of `networks`; False if it is not an IP address."""
    peer = parsed(address) if networks else None
    return peer is not None and any(peer in network for network in networks)


class NetworkSet:
    """A set of networks, in which an address is found whatever their number."""

    def __init__(self, networks: Iterable[Network]) -> None:
        by_length: dict[tuple[int, int], set[int]] = {}
        for network in networks:
            shift = network.max_prefixlen - network.prefixlen
            by_length.setdefault((network.version, shift), set()).add(int(network.network_address) >> shift)
        self._by_length = tuple((*key, frozenset(found)) for key, found in by_length.items())

    def has(self, peer: IPv4Address | IPv6Address | None) -> bool:
        """Return whether an address is in one of the networks; False for None."""
        if peer is not None:
            for version, shift, networks in self._by_length:
                if version == peer.version and int(peer) >> shift in networks:
                    return True
        return False


def is_this_machine(host: str) -> bool:
    """Return whether `host` is `localhost` or a loopback address."""
    if host.lower() == "localhost":
        return True
    address = parsed(host)
    return address is not None and address.is_loopback


def parsed(host: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, unmapping an IPv4-mapped IPv6 one; None for a name."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def unmapped(address: str) -> str:
    """Return a peer's address as text, an IPv4-mapped one as IPv4."""
    return str(parsed(address)) if address.startswith(MAPPED) else address


def ends_of(transport: asyncio.BaseTransport, accepted_from: str) -> tuple[bytes, bytes]:
    """Return a client's address and the host:port that it connected to, with an IPv6 host in brackets; of one that has
    reset its connection already, the address at the accept."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if isinstance(own, str):  # the path of a Unix socket
        return THIS_MACHINE.encode(), b"localhost"
    host = unmapped(own[0]) if own else ""
    authority = f"{f'[{host}]' if ':' in host else host}:{own[1]}" if own else "localhost"
    return unmapped(peer[0] if peer else accepted_from).encode(), authority.encode()
