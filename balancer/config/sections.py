"""The tables of the configuration: one frozen model per concern.

Defaults must be defined here only, with their units and reasons. A validator covers what a pydantic field cannot
express, with a message of one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from balancer.config.transports import Transport, check_installed
from balancer.field_names import in_cgi
from policies import registry
from policies.facts import Endpoint
from policies.insight.canary import Canary
from policies.insight.shadow import Shadow, Shadowed, randomness
from policies.loading.library import Library
from policies.loading.reference import label_of, labels_of, located_here
from policies.policy import Policy

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
MOST_WEIGHT = 1e6
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
LONGEST_ADDRESS = 300
"""Limit in characters; a host name has at most 253."""


class Section(BaseModel):
    """A table of the file: immutable, and unknown keys are errors.

    A default that contradicts a given key is derived from that key (`_derive`); only given keys may contradict.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    def _derive(self, **values: Any) -> None:
        """Set those keys that are not given. They do not count as given."""
        for name, value in values.items():
            if name not in self.model_fields_set:
                self.__dict__[name] = value

    def _has(self, *names: str) -> bool:
        """Return whether any of the keys is given."""
        return not self.model_fields_set.isdisjoint(names)


class PlainPolicy(BaseModel):
    """A policy: its name, or a table with `name` and the policy's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(default="steelyard", description="a name from the registry or an entry point")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if not isinstance(value, str | dict | PlainPolicy):
            raise ValueError(f"must be a name, or a table with a name and options, got {value!r:.60}")
        return located_here({"name": value} if isinstance(value, str) else value)

    @property
    def options(self) -> dict[str, Any]:
        """Options for the policy's constructor."""
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        """The name for logs and the terminal: of FILE.py:CLASS the class."""
        return label_of(self.name)

    def alone(self, rng: Random, path: str, library: Library) -> Policy:
        """Build the policy. Raises `PoliciesError` for an unknown name or option."""
        return registry.make(self.name, self.options, rng, path, library)


class CanarySpec(PlainPolicy):
    """The table [policy.canary]: a candidate policy that places a share of the requests."""

    share: float = Field(default=0.05, gt=0, le=0.5, description="share of requests that it routes")
    by: Literal["request", "key"] = Field(
        default="request",
        description="how requests are chosen: at random, or by key (by path where a request has no key)",
    )


class PolicySpec(PlainPolicy):
    """The policy: `policy = "name"`, or a table with `name` and the policy's own options, a canary and shadow
    policies.
    """

    canary: CanarySpec | None = Field(
        default=None, description="candidate policy that routes a share of the requests"
    )
    shadow: tuple[PlainPolicy, ...] = Field(
        default=(),
        max_length=8,
        description="policies that are evaluated for each request without routing it",
    )

    @field_validator("shadow")
    @classmethod
    def _has_names_of_its_own(cls, value: tuple[PlainPolicy, ...]) -> tuple[PlainPolicy, ...]:
        names = [each.name for each in value]
        if len({*names}) < len(names):
            raise ValueError("a policy must not be listed twice: its counts are kept under its name")
        return value

    @property
    def spec(self) -> dict[str, Any]:
        """The explicitly given keys and the name; a request body that restores the policy."""
        return {"name": self.name, **self.model_dump(mode="json", exclude_unset=True)}

    @cached_property
    def library(self) -> Library:
        """The files that the policy, its canary and its shadows name: each is read once for each specification."""
        return Library()

    def is_same_as(self, other: PolicySpec) -> bool:
        """Whether both are the same policies with the same options, of the same versions of their files."""
        return self == other and self.library.versions == other.library.versions

    def make(self, rng: Random) -> Policy:
        """Build the policy with its canary and shadows. Raises `PoliciesError` for an unknown name or option."""
        policy = self.alone(rng, "policy", self.library)
        canary = self.canary
        if canary is not None:
            candidate = canary.alone(rng, "policy.canary", self.library)
            by_key = canary.by == "key"
            policy = Canary(
                (self.label, policy), (canary.label, candidate), rng, share=canary.share, by_key=by_key
            )
        if self.shadow:
            labels = labels_of(each.name for each in self.shadow)
            policy = Shadowed(policy, [
                Shadow(labels[number], each.alone(randomness(rng), f"policy.shadow.{number}", self.library))
                for number, each in enumerate(self.shadow)
            ])  # fmt: skip
        return policy


class UpstreamTlsConfig(Section):
    """TLS to workers with an https address; the certificate is verified by default."""

    ca: Path | None = Field(
        default=None,
        description="PEM; certificate authorities of the workers' certificates. None: those of the operating system",
    )
    certificate: Path | None = Field(
        default=None, description="PEM; client certificate for workers that request one"
    )
    key: Path | None = Field(default=None, description="PEM; key of the certificate. None: in the same file")
    server_name: str | None = Field(
        default=None,
        min_length=1,
        description="server name for SNI and verification. None: the host of the endpoint's address",
    )
    verify: bool = Field(
        default=True, description="verify the worker's certificate. false: any certificate is accepted"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise ValueError("key: needs certificate")
        if self.ca is not None and not self.verify:
            raise ValueError("ca: must not be given with verify = false")
        return self


def http_origin(text: str) -> str:
    """Return the address of a server without a slash at its end. Raises ValueError unless it is http://host:port or
    https://host:port.
    """
    problem = f"must be http://host:port or https://host:port, got '{text[:LONGEST_ADDRESS]}'"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise ValueError(problem) from None
    extras = url.path.strip("/") or url.query or url.fragment or url.username or url.password
    if not text.isprintable() or " " in text or len(text) > LONGEST_ADDRESS:
        raise ValueError(problem)
    if url.scheme not in ("http", "https") or not url.hostname or extras or port == 0:
        raise ValueError(problem)
    return text.rstrip("/")


class EndpointConfig(Section):
    """One endpoint: a worker and its share of the load."""

    id: Name = Field(description="unique; shown in status, metrics and logs")
    address: str = Field(description="http://host:port or https://host:port")
    region: Name = Field(default="default", description="region of the worker")
    weight: float = Field(
        default=1.0,
        gt=0,
        le=MOST_WEIGHT,
        allow_inf_nan=False,
        description="share of requests relative to the other endpoints",
    )
    max_in_flight: int | None = Field(
        default=None, ge=1, description="maximum requests in flight; more wait in the queue. None: no limit"
    )
    transport: Transport = Field(
        default="native", description="transport to the worker: own HTTP/1.1, HTTP/2, libcurl or aiohttp"
    )
    keep_alive: bool = Field(
        default=True, description="reuse connections. false: a new connection for each request"
    )
    tls: UpstreamTlsConfig | None = Field(
        default=None, description="TLS of this endpoint; replaces upstream_tls entirely"
    )

    @field_validator("transport")
    @classmethod
    def _is_installed(cls, value: Transport) -> Transport:
        check_installed(value)
        return value

    @field_validator("address")
    @classmethod
    def _is_http_origin(cls, value: str) -> str:
        return http_origin(value)

    @property
    def alpn(self) -> str:
        """ALPN protocol for TLS (RFC 7301)."""
        return "h2" if self.transport == "http2" else "http/1.1"

    def endpoint(self) -> Endpoint:
        """Return the endpoint as the plain value that the policies use."""
        return Endpoint(self.id, self.address, self.region, self.weight, self.max_in_flight)


class TimeoutsConfig(Section):
    """Timeouts in seconds. One sweep enforces them, so each may expire up to half a second late."""

    connect: Seconds = Field(default=2.0, description="seconds for the TCP and TLS handshakes with a worker")
    first_byte: Seconds = Field(
        default=25.0,
        description="seconds from the sent request to the response's first byte; below the 30 s of Heroku's router",
    )
    attempt: Seconds | None = Field(
        default=None,
        description="as first_byte, while a retry at another endpoint is possible. None: first_byte only",
    )
    body_idle: Seconds = Field(
        default=60.0, description="seconds without progress of a response or of a request body"
    )
    head: Seconds = Field(
        default=10.0,
        description="seconds for a request head from its first byte, and for PROXY header and TLS handshake before it",
    )
    request_idle: Seconds = Field(default=30.0, description="seconds between two pieces of a request body")
    keep_alive: Seconds = Field(
        default=95.0,
        description="seconds that an idle client connection is kept; above the 90 s of Heroku's router",
    )
    queue: Seconds = Field(default=30.0, description="maximum seconds in the wait queue")
    total: Seconds | None = Field(
        default=None,
        description="maximum seconds from a request's head to the last byte of its response. None: no limit",
    )
    tunnel_idle: Seconds = Field(
        default=3600.0,
        description="seconds without a byte in either direction of a tunnel (a WebSocket, for example); pings count",
    )
    linger: Seconds = Field(
        default=2.0,
        description="seconds of reading on after the last response, so that a TCP reset does not destroy it",
    )
    shutdown: Seconds = Field(
        default=25.0,
        description="seconds for requests in flight after SIGTERM; Heroku sends SIGKILL after 30 s",
    )


class HttpConfig(Section):
    """HTTP methods that are refused unless enabled."""

    allow: tuple[Literal["CONNECT", "TRACE"], ...] = Field(
        default=(), description="methods refused with 405 by default that are allowed"
    )


class LimitsConfig(Section):
    """Limits on memory and file descriptors."""

    queue: int = Field(default=10_000, ge=0, description="maximum requests in the wait queue")
    in_flight: int | None = Field(
        default=None,
        ge=1,
        description="maximum requests in flight at all endpoints; more wait in the queue. None: no limit",
    )
    head: int = Field(
        default=32_768, ge=1024, le=1 << 20, description="maximum bytes of a request head, otherwise 431"
    )
    fields: int = Field(
        default=100, ge=8, le=10_000, description="maximum fields of a request head, otherwise 431"
    )
    target: int = Field(
        default=8_192, ge=64, le=1 << 20, description="maximum bytes of a request target, otherwise 414"
    )
    body: int | None = Field(
        default=None, ge=0, description="maximum bytes of a request body, otherwise 413. None: no limit"
    )
    buffer: int = Field(
        default=65_536,
        ge=1024,
        le=1 << 26,
        description="maximum bytes of a body buffered for a slow reader, per connection and direction",
    )
    clients: int | None = Field(
        default=None,
        ge=1,
        description="maximum client connections; more wait in the kernel. None: derived from RLIMIT_NOFILE",
    )


InternalName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'+.^_`|~-]+\*?$", max_length=128)]


class HeadersConfig(Section):
    """Fields that are added to or removed from heads."""

    internal: tuple[InternalName, ...] = Field(
        default=(),
        description="internal fields, removed from requests and responses; a name, or a prefix with *",
    )
    forwarded: bool = Field(default=False, description="add Forwarded (RFC 7239) beside X-Forwarded-*")

    @field_validator("internal")
    @classmethod
    def _is_not_ours(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            plain = in_cgi(name.removesuffix("*").lower().encode()).decode()
            for needed in NEEDED:
                if needed == plain or (name.endswith("*") and needed.startswith(plain)):
                    raise ValueError(f"'{name}' would take out {needed}, which forwarding needs")
        return names


NEEDED = ("host", "content-length", "transfer-encoding", "content-type", "connection")


class LogConfig(Section):
    """The access log: one line per request."""

    access: Literal["off", "text", "json"] = Field(
        default="off",
        description="key=value pairs as in the log of Heroku's router, or a JSON object; "
        "default: text if path is given",
    )
    path: str | None = Field(
        default=None, min_length=1, description="file to append to, reopened on SIGHUP. None: standard output"
    )
    sample: float = Field(
        default=1.0, ge=0, le=1, description="share of requests logged; failed ones always are"
    )
    queue: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="maximum entries waiting to be written; more are dropped",
    )
    admin: bool = Field(default=True, description="log admin requests too")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self._has("path"):
            self._derive(access="text")
        return self


class CertificateConfig(Section):
    """A certificate, chosen by SNI for the DNS names in it."""

    certificate: Path = Field(description="PEM; certificate with its intermediates")
    key: Path | None = Field(default=None, description="PEM; key of the certificate. None: in the same file")


class TlsConfig(Section):
    """TLS for clients. Paths are relative to the working directory at the start."""

    certificate: Path | None = Field(default=None, description="PEM; certificate with its intermediates")
    key: Path | None = Field(default=None, description="PEM; key of the certificate. None: in the same file")
    certificates: tuple[CertificateConfig, ...] = Field(
        default=(), description="several, chosen by SNI; the first serves all other names"
    )
    min_version: Literal["1.2", "1.3"] = Field(default="1.2", description="oldest accepted version of TLS")
    client_ca: Path | None = Field(
        default=None, description="PEM; clients are asked for a certificate that these have signed"
    )
    client_certificate: Literal["optional", "required"] = Field(
        default="required", description="with client_ca: whether one without is served"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.certificate is None and not self.certificates:
            raise ValueError("certificate: is required")
        if self.key is not None and self.certificate is None:
            raise ValueError("key: needs certificate")
        if "client_certificate" in self.model_fields_set and self.client_ca is None:
            raise ValueError("client_certificate: needs client_ca")
        return self

    def by_field(self) -> Iterator[tuple[str, CertificateConfig]]:
        """Yield every certificate in order, with the prefix of its configuration keys."""
        if self.certificate is not None:
            yield "tls.", CertificateConfig(certificate=self.certificate, key=self.key)
        for at, certificate in enumerate(self.certificates):
            yield f"tls.certificates.{at}.", certificate
