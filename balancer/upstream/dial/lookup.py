"""Name lookup by the system resolver (getaddrinfo) or by DNS queries (c-ares).

Every failure, a timeout included, is raised as a one-line `LookupFailed`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address

from balancer.config.schema.names import NamesConfig
from balancer.upstream.dial.resolver import Addresses, LookupFailed, Resolver

Look = Callable[[str], Awaitable[Addresses]]
"""Lookup function: resolves a name to its `Addresses`. Raises `LookupFailed`."""


@dataclass(frozen=True, slots=True)
class SystemLookup:
    """Lookup by getaddrinfo(3) in a thread: hosts file and search domains included, addresses in the order of RFC 6724.

    It returns no TTL, so `ttl` seconds are assumed. `timeout` in seconds.
    """

    ttl: float
    timeout: float

    async def __call__(self, name: str) -> Addresses:
        """Resolve `name` in the system's resolver. Raises `LookupFailed`."""
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
class DnsLookup:
    """Lookup by c-ares with the TTLs of the zone; IPv6 addresses first (RFC 8305 § 4). Names are absolute, the hosts
    file is ignored."""

    servers: tuple[str, ...]
    timeout: float

    async def __call__(self, name: str) -> Addresses:
        """Resolve `name` in the DNS; one of A and AAAA suffices. Raises `LookupFailed`."""
        resolver = Resolver(self.servers, self.timeout)
        try:
            found = await resolver.addresses(name, accept_partial=True)
        finally:
            await resolver.close()
        return Addresses(tuple(sorted(found.hosts, key=lambda host: ":" not in host)), found.ttl)


def lookup_of(config: NamesConfig) -> Look:
    """Return the lookup that a configuration describes."""
    if config.resolver == "dns":
        return DnsLookup(config.servers, config.timeout)
    return SystemLookup(config.ttl, config.timeout)


def is_literal(host: str) -> bool:
    """Whether `host` is an IP address or the path of a Unix socket, which need no lookup."""
    if host.startswith("/"):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
