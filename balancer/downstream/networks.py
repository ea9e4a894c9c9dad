"""Which peers are meant by a list of networks.

Rule of this file: pure. A socket that listens for IPv4 and IPv6 shows IPv4 peers by mapped addresses (RFC 4291
§ 2.5.5.2), and a link-local address comes with its zone: both are looked through.
"""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network

MAPPED = "::ffff:"
"""How the kernel writes an IPv4 peer of a socket that listens for IPv6 (RFC 4291 § 2.5.5.2)."""


def is_within(address: str, networks: tuple[Network, ...]) -> bool:
    """Whether a peer's address is in one of them; what is no address is in none."""
    peer = parsed(address) if networks else None
    return peer is not None and any(peer in network for network in networks)


def is_this_machine(host: str) -> bool:
    """Whether `host` is `localhost` or a loopback address."""
    if host.lower() == "localhost":
        return True
    address = parsed(host)
    return address is not None and address.is_loopback


def parsed(host: str) -> IPv4Address | IPv6Address | None:
    """The address that `host` is, an IPv4 one in place of the IPv6 address that it is mapped to; None for a name."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def unmapped(address: str) -> str:
    """A peer's address as text, without the mapping of IPv4 into IPv6."""
    return str(parsed(address)) if address.startswith(MAPPED) else address


def ends_of(transport: asyncio.BaseTransport) -> tuple[bytes, bytes]:
    """A client's address, and the host:port that it connected to, with an IPv6 host in brackets."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    host = unmapped(own[0]) if own else ""
    authority = f"{f'[{host}]' if ':' in host else host}:{own[1]}" if own else "localhost"
    return (unmapped(peer[0]) if peer else "unknown").encode(), authority.encode()
