"""Name lookup by the system resolver (getaddrinfo), or by DNS queries of c-ares (aiodns): A with AAAA, and SRV, with
TTLs.

Every failure is raised as a one-line `LookupFailed`: a name that does not exist is treated like a server that does not
answer. Only this module imports the library.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from math import inf
from typing import Any

from balancer.config.schema.discovery import split_server
from balancer.config.schema.names import NamesConfig

TRIES = 2
"""Number of tries per DNS server and query."""

MAX_QUERIES = 16
"""Maximum number of concurrent queries; an SRV record may refer to hundreds of names."""


class LookupFailed(Exception):
    """Failed lookup; the message is one line."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """IP addresses of a name, in order, and their TTL in seconds. `fault`: why some of them or all are missing or old,
    in one line."""

    hosts: tuple[str, ...]
    ttl: float
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """SRV record (RFC 2782) with its TTL in seconds."""

    priority: int
    weight: float
    port: int
    target: str
    ttl: float


class Resolver:
    """DNS resolver that queries `servers`, or those of the system if empty. `timeout`: seconds of a query, all tries.

    Create one for each lookup and close it: c-ares caches a name without addresses for an hour, whatever its zone says
    (RFC 2308), so an endpoint set that was empty for a moment would stay empty for as long. Creating one takes 0.2 ms.
    """

    def __init__(self, servers: tuple[str, ...], timeout: float) -> None:
        import aiodns  # imported here because only DNS lookups need it

        self._timeout = timeout
        self._places = asyncio.Semaphore(MAX_QUERIES)
        self._answered = 0
        self._is_silent = False  # nothing was answered in the time of a query: those that wait fail, too
        self._resolver = aiodns.DNSResolver(
            [f"[{host}]:{port}" for host, port in map(split_server, servers)] or None,
            asyncio.get_running_loop(),
            timeout=timeout / (TRIES + 1),  # the second try waits twice as long
            tries=TRIES,
        )

    async def close(self) -> None:
        """Close the resolver; pending queries fail."""
        await self._resolver.close()

    async def addresses(self, name: str, known: Collection[str] = ()) -> Addresses:
        """Query A and AAAA records. In place of one that fails there are the `known` addresses of its family, and all
        of them if the name has none. Raises nothing: see `Addresses.fault`."""
        answers = await asyncio.gather(self._ask(name, "A"), self._ask(name, "AAAA"), return_exceptions=True)
        hosts: set[str] = set()
        ttl, fault = inf, None
        for is_six, answer in enumerate(answers):
            if isinstance(answer, list):
                hosts.update(record.data.addr for record in answer if hasattr(record.data, "addr"))
                ttl = min([ttl, *(record.ttl for record in answer)])
            elif isinstance(answer, LookupFailed):
                hosts.update(host for host in known if (":" in host) == is_six)
                fault = fault or str(answer)
            else:
                raise answer
        if not hosts:
            hosts.update(known)
            fault = fault or f"{name}: has no addresses"
        return Addresses(tuple(sorted(hosts)), ttl, fault)

    async def services(self, name: str) -> list[Service]:
        """Query SRV records; the list is never empty. Raises `LookupFailed`."""
        found = [
            Service(data.priority, data.weight, data.port, data.target, record.ttl)
            for record in await self._ask(name, "SRV")
            if hasattr(data := record.data, "target")
        ]
        if not found:
            raise LookupFailed(f"{name}: has no SRV records")
        return found

    async def _ask(self, name: str, kind: str) -> list[Any]:
        """Records of an answer, including the aliases (CNAME) that lead to them; empty if there are none. Raises
        `LookupFailed`."""
        import pycares
        from aiodns.error import DNSError

        async with self._places:
            answered = self._answered
            try:
                if self._is_silent:
                    raise TimeoutError
                async with asyncio.timeout(self._timeout):
                    records: list[Any] = (await self._resolver.query_dns(name, kind)).answer
            except (TimeoutError, DNSError) as error:
                code = error.args[0] if isinstance(error, DNSError) else pycares.errno.ARES_ETIMEOUT
                if code == pycares.errno.ARES_ETIMEOUT:
                    self._is_silent |= answered == self._answered
                    raise LookupFailed(f"{name}: no answer within {self._timeout:g} s") from None
                records = []
                if code not in (pycares.errno.ARES_ENODATA, pycares.errno.ARES_ENOTFOUND):
                    raise LookupFailed(f"{name}: {error.args[1].lower()}") from None
            self._answered += 1
            return records


Look = Callable[[str], Awaitable[Addresses]]
"""Lookup function: resolves a name to its `Addresses`. Raises `LookupFailed`."""


async def system_lookup(name: str, *, ttl: float, timeout: float) -> Addresses:
    """Resolve `name` by getaddrinfo(3) in a thread: hosts file and search domains included, addresses in the order of
    RFC 6724. It returns no TTL, so `ttl` seconds are assumed. Raises `LookupFailed`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise LookupFailed(f"{name}: no answer within {timeout:g} s") from None
    except OSError as error:  # gaierror is one
        raise LookupFailed(f"{name}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeError:
        raise LookupFailed(f"{name}: no name can be like that") from None
    hosts = tuple(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    if not hosts:
        raise LookupFailed(f"{name}: has no addresses")
    return Addresses(hosts, ttl)


async def dns_lookup(name: str, *, servers: tuple[str, ...], timeout: float) -> Addresses:
    """Resolve `name` by c-ares with the TTLs of the zone; IPv6 addresses first (RFC 8305 § 4). Names are absolute, the
    hosts file is ignored, and one of A and AAAA suffices. Raises `LookupFailed`."""
    resolver = Resolver(servers, timeout)
    try:
        found = await resolver.addresses(name)
    finally:
        await resolver.close()
    if not found.hosts:
        raise LookupFailed(found.fault or "")
    return Addresses(tuple(sorted(found.hosts, key=lambda host: ":" not in host)), found.ttl)


def lookup_of(config: NamesConfig) -> Look:
    """Return the lookup that a configuration describes."""
    if config.resolver == "dns":
        return partial(dns_lookup, servers=config.servers, timeout=config.timeout)
    return partial(system_lookup, ttl=config.ttl, timeout=config.timeout)


def is_literal(host: str) -> bool:
    """Whether `host` is an IP address or the path of a Unix socket, which need no lookup."""
    if host.startswith("/"):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
