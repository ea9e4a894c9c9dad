"""DNS source of endpoint discovery: endpoints from A, AAAA or SRV records, looked up again when the TTL expires.

An endpoint's id is derived from its address, so an address that stays keeps its state. A failed query, or a name
without addresses, keeps the known endpoints that it has led to.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from ipaddress import ip_address
from math import inf
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
    the next lookup. `answered`: set once the first lookup has ended. `known`: the addresses of the names at the last
    lookup, also of an earlier source for the same name."""

    notice: str | None = None

    def __init__(self, config: DnsDiscovery, tls: UpstreamTlsConfig) -> None:
        self.config = config
        self.problem: str | None = None
        self.lookups = 0
        self.next_at = 0.0
        self.answered = asyncio.Event()
        self._new: tuple[EndpointConfig, ...] | None = None
        self.known: dict[str, tuple[str, ...]] = {}
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
            self._new, ttl, fault = await self._found(resolver)
        except LookupFailed as error:
            fault = str(error)
        finally:
            await resolver.close()
        if fault is not None:
            self.problem = f"discovery.dns: {fault}"
            self._pause = min(self._pause * 2, LONGEST_AFTER_FAILURE)
        else:
            self.problem = None
            self._pause = MIN_INTERVAL_S
            self.next_at = now + max(MIN_INTERVAL_S, min(ttl, self.config.max_ttl))

    async def _found(self, resolver: Resolver) -> tuple[tuple[EndpointConfig, ...], float, str | None]:
        """Return the endpoints, the TTL and a fault, which leaves some of them as they were. Raises `LookupFailed`."""
        config = self.config
        chosen = (
            await self._services(resolver)
            if config.port is None
            else [Service(0, config.weight, config.port, config.name, inf)]
        )
        known = self.known
        found = await asyncio.gather(*(resolver.addresses(s.target, known.get(s.target, ())) for s in chosen))
        pairs = list(zip(chosen, found, strict=True))
        places = {(host, service.port): service for service, addresses in pairs for host in addresses.hosts}
        fault = next((addresses.fault for addresses in found if addresses.fault is not None), None)
        if not places:
            raise LookupFailed(fault)
        if len(places) > MAX_ENDPOINTS:
            raise LookupFailed(f"{config.name}: leads to more than {MAX_ENDPOINTS:,} addresses")
        self.known = {service.target: addresses.hosts for service, addresses in pairs}
        endpoints = tuple(self._endpoint(host, port, service) for (host, port), service in places.items())
        return endpoints, min(min(service.ttl, addresses.ttl) for service, addresses in pairs), fault

    async def _services(self, resolver: Resolver) -> list[Service]:
        """SRV records with the lowest priority value (RFC 2782). The others are for clients without health checks.
        Weight 0 means rarely selected, so it becomes 1, the lowest weight. Raises `LookupFailed`."""
        services = await resolver.services(self.config.name)
        for service in services:
            if not service.port or not HOST_NAME.fullmatch(service.target):
                raise LookupFailed(f"{self.config.name}: an SRV record names no host and port")
        first = min(service.priority for service in services)
        ttl = min(service.ttl for service in services)
        chosen = (replace(s, weight=max(s.weight, 1), ttl=ttl) for s in services if s.priority == first)
        return sorted(chosen, key=lambda service: (service.target, service.port))

    def _endpoint(self, host: str, port: int, service: Service) -> EndpointConfig:
        """Endpoint at an address; its certificate must be for the name that leads there."""
        config = self.config
        tls, name = self._tls, service.target.rstrip(".")
        if config.scheme == "https" and tls.server_name is None:
            tls = tls.model_copy(update={"server_name": name})
        sent = sent_host(config.host, f"{config.scheme}://{name}:{port}") or CLIENT
        return discovered(config, host, port, tls, host=sent, region=config.region, weight=service.weight)


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
