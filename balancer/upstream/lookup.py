"""The two ways to learn a name's addresses: from this machine, or from the DNS itself.

Rule of this file: whatever goes wrong is `LookupFailed`, in one line, within the time that it was given.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address

from balancer.upstream.resolver import Addresses, LookupFailed, Resolver

Look = Callable[[str], Awaitable[Addresses]]
"""Asks for a name. Raises `LookupFailed`."""


@dataclass(frozen=True, slots=True)
class SystemLook:
    """getaddrinfo(3) in a thread: hosts file, search domains and all, in the order of RFC 6724. It tells no TTL, so an
    answer holds for `ttl` seconds."""

    ttl: float
    timeout: float

    async def __call__(self, name: str) -> Addresses:
        """Raises `LookupFailed`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeout):
                found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise LookupFailed(f"{name}: no answer within {self.timeout:g} s") from None
        except OSError as error:  # gaierror is one
            raise LookupFailed(f"{name}: {(error.strerror or str(error)).lower()}") from None
        except UnicodeError:
            raise LookupFailed(f"{name}: no name can be like that") from None
        hosts = tuple(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
        if not hosts:
            raise LookupFailed(f"{name}: has no addresses")
        return Addresses(hosts, self.ttl)


@dataclass(frozen=True, slots=True)
class DnsLook:
    """c-ares, with the TTLs of the zone; IPv6 first (RFC 8305 § 4). Names are absolute, and no hosts file is read."""

    servers: tuple[str, ...]
    timeout: float

    async def __call__(self, name: str) -> Addresses:
        """Raises `LookupFailed`."""
        resolver = Resolver(self.servers, self.timeout)
        try:
            found = await resolver.addresses(name, is_half_enough=True)
        finally:
            await resolver.close()
        return Addresses(tuple(sorted(found.hosts, key=lambda host: ":" not in host)), found.ttl)


def is_literal(host: str) -> bool:
    """Whether it is an address, which nobody has to look up."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
