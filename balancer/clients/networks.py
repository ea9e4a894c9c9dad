"""Which peers are meant by a list of networks.

Rule of this file: pure. A socket that listens for IPv4 and IPv6 shows IPv4 peers by mapped addresses (RFC 4291
§ 2.5.5.2), and a link-local address comes with its zone: both are looked through.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network


def is_within(address: str, networks: tuple[Network, ...]) -> bool:
    """Whether a peer's address is in one of them."""
    if not networks:
        return False
    peer = ip_address(address.partition("%")[0])
    if isinstance(peer, IPv6Address):
        peer = peer.ipv4_mapped or peer
    return any(peer in network for network in networks)
