"""The tables `endpoints` and `upstream_tls` of the configuration."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from balancer.config.schema.listen import PATH_LIMIT
from balancer.config.schema.section import Count, EndpointWeight, Name, Priority, Seconds, Section
from balancer.syntax.networks import parsed
from balancer.syntax.urls import is_authority, server_url
from policies.facts import Endpoint

CLIENT: Final = "client"
ADDRESS: Final = "address"
_PORTS: Final = {"http": 80, "https": 443}


def _checked(value: str, others: str = "") -> str:
    if not (value.isascii() and is_authority(value.encode())):
        raise ValueError(
            f"must be {others}a name such as app.example.org, with or without a port, got {value!r}"
        )
    return value


HostName = Annotated[str, AfterValidator(_checked)]
WorkerHost = Annotated[str, AfterValidator(partial(_checked, others='"client", "address" or '))]


def sent_host(wanted: str | None, origin: str) -> str:
    """Return the Host of requests to the server at `origin`; "": the client's. `wanted`: the key, None: by default."""
    if wanted is None:
        wanted = ADDRESS if tls_name(origin) else CLIENT
    if wanted == CLIENT:
        return ""
    return authority_of(origin) if wanted == ADDRESS else wanted


def authority_of(origin: str) -> str:
    """Return the Host of a server's own URL, without the default port and the zone of an address (RFC 6874 § 4); that
    of a Unix socket is localhost."""
    url = urlsplit(origin)
    host = (url.hostname or "localhost").partition("%")[0]
    if not host.isascii():
        host = host.encode("idna").decode()
    host = f"[{host}]" if ":" in host else host
    return host if url.port in (None, _PORTS.get(url.scheme)) else f"{host}:{url.port}"


def tls_name(origin: str) -> str:
    """Return the DNS name of a server with an https address, "" if there is none."""
    url = urlsplit(origin)
    host = url.hostname or ""
    return host if url.scheme == "https" and parsed(host) is None else ""


def _installed(transport: str) -> str:
    if transport == "curl" and find_spec("pycurl") is None:
        raise ValueError("'curl' needs pycurl, which is not installed: pip install '.[curl]' in the checkout")
    return transport


Transport = Annotated[Literal["native", "http2", "curl", "aiohttp"], AfterValidator(_installed)]


LONGEST_ADDRESS = 300
"""Limit in characters; a host name has at most 253."""

UNIX: Final = "http+unix://"
"""Beginning of the address of a Unix socket; the path follows."""


class UpstreamTlsConfig(Section):
    """TLS to workers with an https address; the certificate is verified by default."""

    ca: Path | None = Field(
        default=None,
        description="certificate authorities of https workers, PEM; default: those of this machine",
    )
    certificate: Path | None = Field(
        default=None, description="client certificate, PEM, for workers that ask for one"
    )
    key: Path | None = Field(
        default=None, description="its private key, PEM; default: the certificate's file"
    )
    server_name: str | None = Field(
        default=None,
        min_length=1,
        description="name | server name for SNI and for verification; default: the host of the address",
    )
    verify: bool = Field(default=True, description="verification of the worker's certificate")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise ValueError("key: needs certificate")
        if self.ca is not None and not self.verify:
            raise ValueError("ca: must not be given with verify = false")
        return self


def http_origin(text: str, allowed: str = "http://host:port or https://host:port") -> str:
    """Return the address of a server without a slash at its end. Raises ValueError unless it is http://host:port or
    https://host:port; `allowed` is in the message.
    """
    problem = f"must be {allowed}, got {text[:LONGEST_ADDRESS]!r}"
    url = server_url(text)
    if url is None or not text.isprintable() or " " in text or len(text) > LONGEST_ADDRESS:
        raise ValueError(problem)
    if url.path.strip("/") or url.query or url.fragment or url.username or url.password:
        raise ValueError(problem)
    return text.rstrip("/")


HttpOrigin = Annotated[str, AfterValidator(http_origin)]


def worker_address(text: str) -> str:
    """Return an `http_origin`, or the address of a Unix socket. Raises ValueError."""
    path = text.removeprefix(UNIX)
    if path == text:
        return http_origin(text, "http://host:port, https://host:port or http+unix:///path")
    is_path = path.startswith("/") and not path.endswith("/") and path.isprintable()
    if not is_path or {*path} & {*"?#%"} or len(path.encode()) > PATH_LIMIT:
        raise ValueError(
            f"must be http+unix:// and an absolute path without ?, # and %, of at most {PATH_LIMIT} bytes, got "
            f"{text[:LONGEST_ADDRESS]!r}"
        )
    return text


class EndpointConfig(Section):
    """One endpoint: a worker and its share of the load."""

    id: Name = Field(description="name | unique id, shown in status and metrics")
    address: Annotated[str, AfterValidator(worker_address)] = Field(
        description="http://host:port, https:// or http+unix:///path | address of the worker; the default port is 80 "
        "or 443; see [Unix sockets](#unix-sockets)"
    )
    host: WorkerHost | None = Field(
        default=None,
        description='`"client"`, `"address"` or a name | Host that the worker gets: that of the client, of the '
        'address, or this one; default: `"address"` for an https address with a DNS name, else `"client"`; see '
        "[Host](#host)",
    )
    region: Name = Field(
        default="default",
        description="name | region of the worker; workers of one region are near each other",
    )
    weight: EndpointWeight = Field(
        default=1.0,
        description="> 0, at most 1,000,000 | share of the traffic relative to the other endpoints",
    )
    priority: Priority = Field(
        default=0,
        description="0, or the level of a backup, which gets what lower values cannot carry; see "
        "[Priorities](#priorities)",
    )
    max_in_flight: Count | None = Field(
        default=None,
        description="requests | limit of requests in flight; more wait in the queue. Without it the endpoint is never"
        " full",
    )
    round_trip: Seconds | None = Field(
        default=None,
        description="round trip to the worker, where a sidecar or tunnel completes TCP handshakes; see "
        "[Connections](#connections)",
    )
    transport: Transport = Field(
        default="native",
        description="client implementation for its requests; see [Transports](transports.md)",
    )
    keep_alive: bool = Field(
        default=True, description="reuse of connections; false: a new connection for each request"
    )
    tls: UpstreamTlsConfig | None = Field(
        default=None, description="TLS of this endpoint; replaces upstream_tls entirely"
    )

    @model_validator(mode="after")
    def _transport_fits(self) -> Self:
        if self.address.startswith(UNIX) and self.transport in ("curl", "aiohttp"):
            raise ValueError(f'transport: "{self.transport}" has no Unix sockets; use "native" or "http2"')
        return self

    @property
    def alpn(self) -> str:
        """ALPN protocol for TLS (RFC 7301)."""
        return "h2" if self.transport == "http2" else "http/1.1"

    def endpoint(self) -> Endpoint:
        """Return the endpoint as the plain value that the policies use."""
        round_trip, host = self.round_trip or 0.0, sent_host(self.host, self.address).encode()
        return Endpoint(
            self.id,
            self.address,
            self.region,
            self.weight,
            self.max_in_flight,
            round_trip,
            host,
            self.priority,
        )
