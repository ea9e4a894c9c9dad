"""Look-ups in the DNS, by c-ares: A and AAAA together, and SRV.

Rule of this file: it knows the library, and nobody else does. An answer says for how long it holds. Whatever is not an
answer is `LookupFailed`, in one line: a name that does not exist says no more than a server that does not answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from balancer.config.discovery import split_server

TRIES = 2
"""Times that each server is asked."""

AT_ONCE = 16
"""Questions under way: an SRV record may lead to hundreds of names."""


class LookupFailed(Exception):
    """No answer; one line says why."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """IP addresses of a name, in order, and the seconds for which that holds."""

    hosts: tuple[str, ...]
    ttl: float


@dataclass(frozen=True, slots=True)
class Service:
    """One SRV record (RFC 2782)."""

    priority: int
    weight: int
    port: int
    target: str
    ttl: float


class Resolver:
    """Asks `servers`, or those of this machine where none are named; `timeout` in seconds, for all tries together.

    Made for one look and then closed: c-ares keeps a name without addresses for an hour, whatever its zone says (RFC
    2308), and a service that had nobody for a moment must not seem to have nobody for so long. That takes 0.2 ms.
    """

    def __init__(self, servers: tuple[str, ...], timeout: float) -> None:
        import aiodns  # here: who discovers nothing by DNS need not load it

        self._timeout = timeout
        self._places = asyncio.Semaphore(AT_ONCE)
        self._resolver = aiodns.DNSResolver(
            [f"[{host}]:{port}" for host, port in map(split_server, servers)] or None,
            asyncio.get_running_loop(),
            timeout=timeout / (TRIES + 1),  # the second waits for twice as long
            tries=TRIES,
        )

    async def close(self) -> None:
        """Whoever still waits gets no answer."""
        await self._resolver.close()

    async def addresses(self, name: str, *, is_half_enough: bool = False) -> Addresses:
        """A and AAAA. Raises `LookupFailed`, where only one kind got an answer, too: a half is not the whole, but
        enough for who only wants to connect."""
        answers = await asyncio.gather(self._ask(name, "A"), self._ask(name, "AAAA"), return_exceptions=True)
        faults = [answer for answer in answers if isinstance(answer, BaseException)]
        records = [record for answer in answers if not isinstance(answer, BaseException) for record in answer]
        if faults and not (is_half_enough and records):
            raise faults[0]
        hosts = {record.data.addr for record in records if hasattr(record.data, "addr")}
        if not hosts:
            raise LookupFailed(f"{name}: has no addresses")
        return Addresses(tuple(sorted(hosts)), min(record.ttl for record in records))

    async def services(self, name: str) -> list[Service]:
        """SRV. Raises `LookupFailed`."""
        found = [
            Service(data.priority, data.weight, data.port, data.target, record.ttl)
            for record in await self._ask(name, "SRV")
            if hasattr(data := record.data, "target")
        ]
        if not found:
            raise LookupFailed(f"{name}: has no SRV records")
        return found

    async def _ask(self, name: str, kind: str) -> list[Any]:
        """The records of an answer, aliases on the way to them included; none where there are none."""
        import pycares
        from aiodns.error import DNSError

        try:
            async with asyncio.timeout(self._timeout), self._places:
                return (await self._resolver.query_dns(name, kind)).answer
        except TimeoutError:
            raise LookupFailed(f"{name}: no answer within {self._timeout:g} s") from None
        except DNSError as error:
            if error.args[0] in (pycares.errno.ARES_ENODATA, pycares.errno.ARES_ENOTFOUND):
                return []
            raise LookupFailed(f"{name}: {error.args[1].lower()}") from None
