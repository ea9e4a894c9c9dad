"""The table [discovery] of the configuration: endpoints from a file, DNS or Kubernetes, updated at run time."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    model_validator,
)

from balancer.config.schema.endpoint import CLIENT, EndpointConfig, HttpOrigin, WorkerHost
from balancer.config.schema.section import (
    Count,
    EndpointWeight,
    Name,
    Port,
    Priority,
    Seconds,
    Section,
    require_unique,
)

KubernetesName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)]

PORT_NAME = re.compile(r"[a-z0-9-]{1,63}")


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _checked_port(text: str) -> str:
    is_number = text.isascii() and text.isdigit()
    if not PORT_NAME.fullmatch(text) or (is_number and not 0 < int(text) < 65536):
        raise ValueError(f"must be the name of a port or a number of 1–65535, got '{text[:63]}'")
    return text


ServicePort = Annotated[str, BeforeValidator(_as_text), AfterValidator(_checked_port)]
"""Name or number of a port. No name has only digits (RFC 6335 § 5.1)."""


class KubernetesDiscovery(Section):
    """Endpoints from the EndpointSlices of a Service, which are watched through the API server of Kubernetes."""

    service: KubernetesName = Field(
        description="name | Service of Kubernetes whose pods are the endpoints; see [Kubernetes](#kubernetes)"
    )
    namespace: KubernetesName | None = Field(
        default=None,
        description="name | namespace of the Service; default: that of the balancer's pod. Required with `server`",
    )
    port: ServicePort | None = Field(
        default=None,
        description="name or 1–65535 | port of the pods, `targetPort`: by its name in the Service, or its number; "
        "default: the only one",
    )
    scheme: Literal["http", "https"] = Field(
        default="http",
        description="scheme of the endpoints; with https the certificate must name `SERVICE.NAMESPACE.svc`, or "
        "`upstream_tls.server_name`",
    )
    host: WorkerHost = Field(
        default=CLIENT, description='as there | as `endpoints.host`, where `"address"` is that of the pod'
    )
    region: Name | None = Field(
        default=None,
        description="name | region of endpoints whose zone is not in `zones`; without `zones`, of all. Default: the "
        "zone is the region",
    )
    zones: dict[str, Name] = Field(
        default={}, description='table | regions by zone, `{ europe-west1-b = "emea" }`'
    )
    weight: EndpointWeight = Field(
        default=1.0, description="> 0, at most 1,000,000 | weight of each endpoint"
    )
    priority: Priority = Field(default=0, description="as `endpoints.priority`")
    max_in_flight: Count | None = Field(
        default=None, description="requests | limit of requests in flight of each endpoint"
    )
    round_trip: Seconds | None = Field(default=None, description="as `endpoints.round_trip`")
    allow_empty: bool = Field(
        default=False,
        description="acceptance of a Service without a ready pod, which removes all its endpoints; false: the known "
        "ones stay",
    )
    server: HttpOrigin | None = Field(
        default=None,
        description="http://host:port or https:// | API server; default: the one of the cluster that the balancer "
        "runs in",
    )
    token_file: Path | None = Field(
        default=None,
        description="bearer token, read for each request; default: that of the pod's service account, with `server` "
        "none",
    )
    ca_file: Path | None = Field(
        default=None,
        description="certificate authorities of the API server, PEM; default: those of the pod's service account, "
        "with `server` those of this machine",
    )
    timeout: Seconds = Field(
        default=5.0, description="timeout of an answer of the API server; after it the known endpoints stay"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.server is not None and self.namespace is None:
            raise ValueError("namespace: is required with server")
        return self

    @property
    def source(self) -> str:
        """Name of the source; without a configured namespace the balancer completes it."""
        return f"kubernetes {self.service if self.namespace is None else f'{self.namespace}/{self.service}'}"


DnsName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?$", max_length=254)
]

DNS_PORT = "53"


def _addresses(servers: tuple[str, ...]) -> tuple[str, ...]:
    for server in servers:
        if not is_server(server):
            raise ValueError(f"must be address or address:port, [::1]:53 for IPv6, got '{server}'")
    return servers


Servers = Annotated[tuple[str, ...], AfterValidator(_addresses)]
"""Name servers, each by its IP address, with or without a port."""


class FileDiscovery(Section):
    """Endpoints from a file, which is read again when it has changed."""

    path: Path = Field(
        description="file with endpoints, read again when it changes; see [Discovery](#discovery)"
    )
    allow_empty: bool = Field(
        default=False,
        description="acceptance of an empty list, which removes all endpoints of the file; false: the known ones stay",
    )


class DnsDiscovery(Section):
    """Endpoints from the addresses of a DNS name, which is looked up again when the TTL has passed."""

    name: DnsName = Field(
        description="name | absolute DNS name, without search domains; one `[[discovery.dns]]` for each name"
    )
    record: Literal["address", "srv"] = Field(
        default="address",
        description="record type: A and AAAA, or SRV with its own ports and weights (lowest priority value only)",
    )
    port: Port | None = Field(
        default=None, description="1–65535 | port of the endpoints; required with address records"
    )
    scheme: Literal["http", "https"] = Field(
        default="http",
        description="scheme of the endpoints; with https the certificate must name the name that is looked up",
    )
    host: WorkerHost | None = Field(
        default=None,
        description='as there | as `endpoints.host`, where `"address"` is the name that is looked up, or '
        'the target of an SRV record; default: `"address"` with https, else `"client"`',
    )
    region: Name = Field(default="default", description="name | region of the endpoints")
    weight: EndpointWeight = Field(
        default=1.0,
        description="> 0, at most 1,000,000 | weight of each endpoint; SRV records have their own",
    )
    priority: Priority = Field(default=0, description="as `endpoints.priority`")
    max_in_flight: Count | None = Field(
        default=None, description="requests | limit of requests in flight of each endpoint"
    )
    round_trip: Seconds | None = Field(default=None, description="as `endpoints.round_trip`")
    servers: Servers = Field(
        default=(),
        description='list of addresses | name servers, `"192.0.2.1"` or `"192.0.2.1:5353"`; empty: those of this '
        "machine",
    )
    max_ttl: Seconds = Field(
        default=300.0, description="longest time to the next lookup, whatever the TTL; at least 1 s"
    )
    timeout: Seconds = Field(default=2.0, description="timeout of a query; after it the known endpoints stay")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.record == "address" and self.port is None:
            raise ValueError("port: is required with address records")
        if self.record == "srv" and "port" in self.model_fields_set:
            raise ValueError("port: must not be given with SRV records, which have their own")
        return self

    @property
    def source(self) -> str:
        """Name of the source in status, metrics and the endpoint registry."""
        return f"dns {self.name}" if self.port is None else f"dns {self.name}:{self.port}"


class DiscoveryConfig(Section):
    """Discovery sources; an endpoint in the configuration takes precedence over a discovered one with the same id."""

    file: FileDiscovery | None = None
    dns: tuple[DnsDiscovery, ...] = ()
    kubernetes: KubernetesDiscovery | None = None

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        names = (name.source.removeprefix("dns ") for name in self.dns)
        require_unique(names, "dns.{at}.name: {value} is there twice")
        return self

    @property
    def remote(self) -> tuple[DnsDiscovery | KubernetesDiscovery, ...]:
        """Sources on other machines: those of DNS, then that of Kubernetes."""
        return self.dns if self.kubernetes is None else (*self.dns, self.kubernetes)

    @property
    def is_configured(self) -> bool:
        """Whether any source is configured."""
        return self.file is not None or bool(self.remote)


class EndpointList(Section):
    """Content of a discovery file: endpoints with unique ids."""

    endpoints: tuple[EndpointConfig, ...]

    @model_validator(mode="after")
    def _has_unique_ids(self) -> Self:
        check_unique(self.endpoints)
        return self


def check_unique(endpoints: tuple[EndpointConfig, ...]) -> None:
    """Check that the endpoints' ids are unique. Raises ValueError."""
    ids = (endpoint.id for endpoint in endpoints)
    require_unique(ids, "endpoints.{at}.id: '{value}' is used twice; every id must be unique")


def is_server(text: str) -> bool:
    """Return whether `text` is an IP address, with or without a port."""
    host, port = split_server(text)
    try:
        ip_address(host)
    except ValueError:
        return False
    return port.isascii() and port.isdigit() and 0 < int(port) < 65536


def split_server(text: str) -> tuple[str, str]:
    """Return host and port of "a", "a:53", "[v6]:53" or a bare IPv6 address."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") or DNS_PORT
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, port
    return text, DNS_PORT
