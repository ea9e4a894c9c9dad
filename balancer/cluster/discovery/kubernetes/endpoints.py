"""Endpoints of a Service from its EndpointSlices: pods that take requests, with their port and region. Pure.

The objects are those of discovery.k8s.io/v1 as they are sent: EndpointSlices, lists and events. Only the fields in use
are read. `null` stands for an empty list, because Go writes a nil slice so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

from pydantic import AliasPath, BaseModel, BeforeValidator, Field, model_validator

from balancer.cluster.discovery.dns_source import MAX_ENDPOINTS, discovered
from balancer.config.schema.discovery import KubernetesDiscovery
from balancer.config.schema.endpoint import EndpointConfig, UpstreamTlsConfig
from balancer.config.schema.section import NAME
from policies.errors import some_of

FAMILIES = {"IPv4": 4, "IPv6": 6}
"""IP version by address type; the other type, FQDN, has host names."""

Text = Annotated[str, Field(max_length=2048)]

NoneAsEmpty = BeforeValidator(lambda value: () if value is None else value)


class SliceEndpoint(BaseModel):
    """One pod. Its addresses are interchangeable; the API asks for use of the first. Conditions, None: unknown."""

    addresses: tuple[Text, ...] = Field(min_length=1)
    ready: bool | None = Field(default=None, validation_alias=AliasPath("conditions", "ready"))
    serving: bool | None = Field(default=None, validation_alias=AliasPath("conditions", "serving"))
    terminating: bool | None = Field(default=None, validation_alias=AliasPath("conditions", "terminating"))
    zone: Text | None = None
    uid: Text | None = Field(default=None, validation_alias=AliasPath("targetRef", "uid"))

    @property
    def pod(self) -> str:
        """Identity of the pod; in a slice that was not made from pods, the address."""
        return self.uid or self.addresses[0]

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests. Unknown is ready; with `publishNotReadyAddresses` a pod stays ready while it
        terminates."""
        return self.ready is not False and not self.terminating

    @property
    def is_last_resort(self) -> bool:
        """Whether it takes requests while no other pod is ready, as with kube-proxy: it serves until it ends."""
        return bool(self.serving and self.terminating)


class SlicePort(BaseModel):
    """Port of all endpoints of a slice. `port` None: every port."""

    name: Text | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    protocol: Text | None = None

    @property
    def is_tcp(self) -> bool:
        """Whether the protocol is TCP, the default."""
        return self.protocol in (None, "TCP")

    def __str__(self) -> str:
        number = f"{self.port}" if self.is_tcp else f"{self.port}, {self.protocol}"
        return f"{self.name} ({number})" if self.name else number


Version = Annotated[Text, Field(validation_alias=AliasPath("metadata", "resourceVersion"), min_length=1)]
"""A resource version, which is opaque."""


class EndpointSlice(BaseModel):
    """Endpoints of one Service with the same address type and the same ports."""

    name: Text = Field(validation_alias=AliasPath("metadata", "name"), min_length=1)
    family: Literal["IPv4", "IPv6", "FQDN"] = Field(alias="addressType")
    endpoints: Annotated[tuple[SliceEndpoint, ...], NoneAsEmpty]
    ports: Annotated[tuple[SlicePort, ...], NoneAsEmpty] = ()

    @model_validator(mode="after")
    def _has_addresses_of_its_family(self) -> Self:
        for at, endpoint in enumerate(self.endpoints if self.family in FAMILIES else ()):
            host = endpoint.addresses[0]
            if not _is_address(host, FAMILIES[self.family]):
                raise ValueError(
                    f"endpoints.{at}.addresses.0: must be an {self.family} address, got '{host[:60]}'"
                )
        return self


class SliceList(BaseModel):
    """One page of a list; `next_page` is the token of the next one."""

    kind: Literal["EndpointSliceList"]
    api: Literal["discovery.k8s.io/v1"] = Field(alias="apiVersion")
    version: Version
    next_page: Text | None = Field(default=None, validation_alias=AliasPath("metadata", "continue"))
    items: Annotated[tuple[EndpointSlice, ...], NoneAsEmpty]


class WatchEvent(BaseModel):
    """One line of a watch."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: dict[str, Any]


class Versioned(BaseModel):
    """Object of an event: a slice, or in a bookmark only its resource version."""

    kind: Literal["EndpointSlice"]
    api: Literal["discovery.k8s.io/v1"] = Field(alias="apiVersion")
    version: Version


class Status(BaseModel):
    """Object that reports an error."""

    kind: Literal["Status"]
    message: str = ""
    code: int = 0


def _is_address(text: str, version: int) -> bool:
    try:
        return ip_address(text).version == version and "%" not in text
    except ValueError:
        return False


IS_NAME = re.compile(NAME).fullmatch

DEFAULT_REGION = EndpointConfig.model_fields["region"].default


class Unusable(Exception):
    """The slices give no endpoints under the configuration; the message is one line."""


@dataclass(frozen=True, slots=True)
class PodAddress:
    """Where a pod takes requests, and its zone."""

    host: str
    port: int
    zone: str | None


def pod_addresses(slices: Iterable[EndpointSlice], port: str | None) -> list[PodAddress]:
    """Return one address for each pod that takes requests: the ready ones, or if none is, those that serve while they
    terminate. Raises `Unusable` if the Service has pods, but none with that port.

    A pod that is in several slices, while it moves between them or with addresses of both families, is ready if it is
    ready in one of them, and has its IPv4 address.
    """
    ready: dict[str, PodAddress] = {}
    last_resort: dict[str, PodAddress] = {}
    others: dict[str, None] = {}
    has_port = is_lacking = False
    for each in sorted(slices, key=lambda each: (each.family, each.name)):
        if not each.endpoints or each.family not in FAMILIES:
            continue
        number = port_number(each, port)
        if number is None:
            others |= dict.fromkeys(map(str, each.ports))
            is_lacking |= port is None and any(endpoint.is_ready for endpoint in each.endpoints)
            continue
        has_port = True
        for endpoint in each.endpoints:
            address = PodAddress(endpoint.addresses[0], number, endpoint.zone)
            if endpoint.is_ready:
                ready.setdefault(endpoint.pod, address)
            elif endpoint.is_last_resort:
                last_resort.setdefault(endpoint.pod, address)
    if has_port or not (others or is_lacking):
        return list((ready or last_resort).values())
    if port is None:
        raise Unusable("port: is required; the pods have no named one")
    raise Unusable(f"port: {port} is no port of the pods, which have {some_of(others)}")


def port_number(those: EndpointSlice, wanted: str | None) -> int | None:
    """Return the number of the slice's port with a name or number, without `wanted` of the only one; None if it has
    none. Raises `Unusable` if there is a choice.

    A slice without ports, of a headless Service without ports, has every number.
    """
    ports = [port for port in those.ports if port.is_tcp]
    if wanted is None:
        if len(ports) > 1:
            raise Unusable(f"port: is required; the pods have {some_of(map(str, ports))}")
        return ports[0].port if ports else None
    if not wanted.isdigit():
        return next((port.port for port in ports if port.name == wanted), None)
    number = int(wanted)
    return number if not those.ports or any(port.port in (number, None) for port in ports) else None


def endpoints_of(
    slices: Collection[EndpointSlice],
    config: KubernetesDiscovery,
    tls: UpstreamTlsConfig,
    known: dict[PodAddress, EndpointConfig],
) -> tuple[tuple[EndpointConfig, ...], str | None]:
    """Return the endpoints, and one line about what is left out or assumed, None: nothing. Raises `Unusable`, also if
    no pod takes requests and that is not allowed.

    `tls`: for endpoints with https. `known`: those of the last call, which are used again and replaced by the present
    ones: to make one takes 12 µs, and there may be thousands.
    """
    addresses = pod_addresses(slices, config.port)
    if not addresses and not config.allow_empty:
        raise Unusable("no pod is ready; discovery.kubernetes.allow_empty = true allows that")
    if len(addresses) > MAX_ENDPOINTS:
        raise Unusable(f"has more than {MAX_ENDPOINTS:,} pods")
    endpoints = {
        address: known.get(address)
        or discovered(
            config,
            address.host,
            address.port,
            tls,
            host=config.host,
            region=region_of(address.zone, config) or DEFAULT_REGION,
            weight=config.weight,
        )
        for address in addresses
    }
    known.clear()
    known.update(endpoints)
    notices = [
        f"slice {each.name} is left out: its address type is {each.family}, must be IPv4 or IPv6"
        for each in slices
        if each.family not in FAMILIES
    ]
    zones = {address.zone for address in addresses if region_of(address.zone, config) is None}
    if zones:
        where = some_of(sorted(f"in zone {zone[:64]}" if zone else "without a zone" for zone in zones))
        notices.append(
            f"pods {where} are in region {DEFAULT_REGION}; discovery.kubernetes.region sets another"
        )
    return tuple(endpoints.values()), "; ".join(notices) or None


def region_of(zone: str | None, config: KubernetesDiscovery) -> str | None:
    """Return the region of a zone, None if neither the configuration nor the zone gives one."""
    if config.zones:
        return config.zones.get(zone or "", config.region)
    if config.region is None and zone and IS_NAME(zone):
        return zone
    return config.region
