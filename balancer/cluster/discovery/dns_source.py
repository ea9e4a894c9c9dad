"""DNS source of endpoint discovery: endpoints from A, AAAA or SRV records, looked up again when the TTL expires.

An endpoint's id is derived from its address, so an address that stays keeps its state. A failed lookup or an empty
answer keeps the known endpoints.
"""

from __future__ import annotations

import asyncio
import re
from ipaddress import ip_address
from typing import Any

from balancer.config.schema.discovery import DnsDiscovery, KubernetesDiscovery
from balancer.config.schema.endpoint import CLIENT, EndpointConfig, UpstreamTlsConfig, sent_host
from balancer.upstream.dial.resolver import LookupFailed, Resolver, Service

HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\.?")
"""Accepted SRV targets, which are displayed and sent to workers as SNI."""

MAX_ENDPOINTS = 5000
"""Maximum number of endpoints from one name."""

MIN_INTERVAL_S = 1.0
"""Minimum seconds between lookups, whatever the TTL."""

LONGEST_AFTER_FAILURE = 30.0
"""Maximum pause in seconds after failed lookups; it doubles up to this."""


class DnsSource:
    """DNS source for one name. `problem`: reason why the last lookup failed, None if it succeeded. `next_at`: time of
    the next lookup. `answered`: set once the first lookup has ended."""

    notice: str | None = None

    def __init__(self, config: DnsDiscovery, tls: UpstreamTlsConfig) -> None:
        self.config = config
        self.problem: str | None = None
        self.lookups = 0
        self.next_at = 0.0
        self.answered = asyncio.Event()
        self._new: tuple[EndpointConfig, ...] | None = None
        self._tls = tls
        self._pause = MIN_INTERVAL_S

    @property
    def source(self) -> str:
        return self.config.source

    def is_for(self, config: DnsDiscovery | KubernetesDiscovery, tls: UpstreamTlsConfig) -> bool:
        return (config, tls) == (self.config, self._tls)

    def look(self, now: float) -> tuple[EndpointConfig, ...] | None:
        """Return the endpoints of a lookup that has succeeded since the last call, None if none has."""
        found, self._new = self._new, None
        return found

    async def follow(self, now: float) -> None:
        self.lookups += 1
        self.next_at = now + self._pause
        resolver = Resolver(self.config.servers, self.config.timeout)
        try:
            self._new, ttl = await self._found(resolver)
        except LookupFailed as error:
            self.problem = f"discovery.dns: {error}"
            self._pause = min(self._pause * 2, LONGEST_AFTER_FAILURE)
        else:
            self.problem = None
            self._pause = MIN_INTERVAL_S
            self.next_at = now + min(max(ttl, MIN_INTERVAL_S), self.config.max_ttl)
        finally:
            await resolver.close()

    async def _found(self, resolver: Resolver) -> tuple[tuple[EndpointConfig, ...], float]:
        config = self.config
        if config.port is not None:
            found = await resolver.addresses(config.name)
            name = config.name
            return tuple(self._endpoint(host, config.port, name) for host in found.hosts), found.ttl
        return await self._services(resolver, await resolver.services(config.name))

    async def _services(
        self, resolver: Resolver, services: list[Service]
    ) -> tuple[tuple[EndpointConfig, ...], float]:
        """Endpoints of the SRV records with the lowest priority value (RFC 2782), and the TTL. The others are for
        clients without health checks. Raises `LookupFailed`."""
        for service in services:
            if not service.port or not HOST_NAME.fullmatch(service.target):
                raise LookupFailed(f"{self.config.name}: an SRV record names no host and port")
        first = min(service.priority for service in services)
        chosen = sorted((s for s in services if s.priority == first), key=lambda s: (s.target, s.port))
        found = await asyncio.gather(*(resolver.addresses(service.target) for service in chosen))
        places = {
            (host, service.port): service
            for service, addresses in zip(chosen, found, strict=True)
            for host in addresses.hosts
        }
        if len(places) > MAX_ENDPOINTS:
            raise LookupFailed(f"{self.config.name}: leads to more than {MAX_ENDPOINTS:,} addresses")
        endpoints = tuple(
            self._endpoint(host, port, service.target, service.weight)
            for (host, port), service in places.items()
        )
        ttl = min([*(service.ttl for service in services), *(addresses.ttl for addresses in found)])
        return endpoints, ttl

    def _endpoint(self, host: str, port: int, name: str, weight: float | None = None) -> EndpointConfig:
        """Endpoint at an address; its certificate must be for `name`. SRV weight 0 means rarely selected, so it becomes
        1, the lowest weight."""
        config = self.config
        tls, name = self._tls, name.rstrip(".")
        if config.scheme == "https" and tls.server_name is None:
            tls = tls.model_copy(update={"server_name": name})
        weight = config.weight if weight is None else max(weight, 1)
        sent = sent_host(config.host, f"{config.scheme}://{name}:{port}") or CLIENT
        return discovered(config, host, port, tls, host=sent, region=config.region, weight=weight)


def discovered(
    config: DnsDiscovery | KubernetesDiscovery, ip: str, port: int, tls: UpstreamTlsConfig, **keys: Any
) -> EndpointConfig:
    """Endpoint that discovery has found at an address: `keys` are what its source does not take from `config`."""
    return EndpointConfig(
        id=endpoint_id(ip, port),
        address=f"{config.scheme}://{f'[{ip}]' if ':' in ip else ip}:{port}",
        priority=config.priority,
        max_in_flight=config.max_in_flight,
        round_trip=config.round_trip,
        tls=tls if config.scheme == "https" else None,
        **keys,
    )


def endpoint_id(host: str, port: int) -> str:
    """Endpoint id of an address, such as 192.0.2.1-8080 or ip6-2001-db8--1-8080: unique, and valid as an id."""
    address = ip_address(host.partition("%")[0])
    text = address.compressed.replace(":", "-")
    return f"ip6-{text}-{port}" if address.version == 6 else f"{text}-{port}"
