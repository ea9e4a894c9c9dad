"""The table [discovery] of the configuration: endpoints that a file or the DNS names while the unit runs.

Rule of this file: as in `sections.py`.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from balancer.config.sections import EndpointConfig, Name, Seconds, Section

DnsName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\.?$")]

DNS_PORT = "53"


def _addresses(servers: tuple[str, ...]) -> tuple[str, ...]:
    for server in servers:
        if not is_server(server):
            raise ValueError(f"must be address or address:port, [::1]:53 for IPv6, got '{server}'")
    return servers


Servers = Annotated[tuple[str, ...], AfterValidator(_addresses)]
"""Name servers, each by its address."""


class FileDiscovery(Section):
    """A list of endpoints in a file, read again when it has changed."""

    path: Path = Field(description="[[endpoints]] in TOML, or in JSON where the name ends in .json")
    may_be_empty: bool = Field(
        default=False, description="whether an empty list takes all of them out; else the known ones stay"
    )


class DnsDiscovery(Section):
    """The addresses of a name, looked up again when their time to live has passed."""

    name: DnsName = Field(description="absolute: no search domain is added")
    record: Literal["address", "srv"] = Field(
        default="address",
        description="address: A and AAAA; srv: ports, weights and names of its own (RFC 2782)",
    )
    port: int | None = Field(default=None, ge=1, le=65535, description="of address records; SRV has its own")
    scheme: Literal["http", "https"] = Field(default="http", description="what the workers speak")
    region: Name = Field(default="default", description="of all that this name leads to")
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="of each; SRV has its own")
    max_in_flight: int | None = Field(default=None, ge=1, description="of each. None: no limit")
    servers: Servers = Field(
        default=(), description="address or address:port of those to ask. None named: those of this machine"
    )
    longest: Seconds = Field(
        default=300.0, description="seconds, at most, to the next look-up, whatever the TTL"
    )
    timeout: Seconds = Field(default=2.0, description="seconds for a look-up; what was known stays")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.record == "address" and self.port is None:
            raise ValueError("port: is required with address records")
        if self.record == "srv" and "port" in self.model_fields_set:
            raise ValueError("port: SRV records say their own")
        return self

    @property
    def source(self) -> str:
        """Its name among the sources of endpoints."""
        return f"dns {self.name}" if self.port is None else f"dns {self.name}:{self.port}"


class DiscoveryConfig(Section):
    """Beside the endpoints of the configuration, which win where both name an id."""

    file: FileDiscovery | None = None
    dns: tuple[DnsDiscovery, ...] = ()

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        seen: set[str] = set()
        for at, name in enumerate(self.dns):
            if name.source in seen:
                raise ValueError(f"dns.{at}.name: {name.source.removeprefix('dns ')} is there twice")
            seen.add(name.source)
        return self

    @property
    def names_somebody(self) -> bool:
        """Whether there is a source at all."""
        return self.file is not None or bool(self.dns)


class EndpointList(Section):
    """What a watched file holds."""

    endpoints: tuple[EndpointConfig, ...]

    @model_validator(mode="after")
    def _has_unique_ids(self) -> Self:
        check_unique(self.endpoints)
        return self


def check_unique(endpoints: tuple[EndpointConfig, ...]) -> None:
    """Raises ValueError for an id that is there twice."""
    seen: set[str] = set()
    for at, endpoint in enumerate(endpoints):
        if endpoint.id in seen:
            raise ValueError(f"endpoints.{at}.id: '{endpoint.id}' is used twice; every id must be unique")
        seen.add(endpoint.id)


def is_server(text: str) -> bool:
    """Whether it is an IP address, with a port or without."""
    host, port = split_server(text)
    try:
        ip_address(host)
    except ValueError:
        return False
    return port.isascii() and port.isdigit() and 0 < int(port) < 65536


def split_server(text: str) -> tuple[str, str]:
    """Host and port of "a", "a:53", "[v6]:53" or a bare IPv6 address."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") or DNS_PORT
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, port
    return text, DNS_PORT
