"""The tables of the configuration: one frozen model per concern.

Defaults must be defined here only, with their units and reasons. A validator covers what a pydantic field cannot
express, with a message of one line.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from policies.policy import Policy

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
MOST_WEIGHT = 1e6
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
LONGEST_ADDRESS = 300
"""Limit in characters; a host name has at most 253."""


class Section(BaseModel):
    """A table of the file: immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PlainPolicy(BaseModel):
    """A policy: its name, or a table with `name` and the policy's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(default="random", description="a name from the registry or an entry point")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """Options for the policy's constructor."""
        return dict(self.model_extra or {})

    def alone(self, rng: Random, path: str = "policy") -> Policy:
        """Build the policy. Raises `PoliciesError` for an unknown name or option."""
        return registry.make(self.name, self.options, rng, path)


class CanarySpec(PlainPolicy):
    """The table [policy.canary]: a candidate policy that places a share of the requests."""

    share: float = Field(default=0.05, gt=0, le=0.5, description="of the requests, that it places")
    by: Literal["request", "key"] = Field(
        default="request",
        description="drawn for each; or always the same for a key, or a path where there is none",
    )


class PolicySpec(PlainPolicy):
    """The policy: `policy = "name"`, or a table with `name` and the policy's own options, a canary and shadow
    policies.
    """

    canary: CanarySpec | None = Field(default=None, description="another policy that places a share of them")
    shadow: tuple[PlainPolicy, ...] = Field(
        default=(), max_length=8, description="policies that are asked, too, and never send"
    )

    @field_validator("shadow")
    @classmethod
    def _has_names_of_its_own(cls, value: tuple[PlainPolicy, ...]) -> tuple[PlainPolicy, ...]:
        names = [each.name for each in value]
        if len({*names}) < len(names):
            raise ValueError("a policy can stand there once: its counts go by its name")
        return value

    @property
    def spec(self) -> dict[str, Any]:
        """The explicitly given keys and the name; a request body that restores the policy."""
        return {"name": self.name, **self.model_dump(mode="json", exclude_unset=True)}

    def make(self, rng: Random) -> Policy:
        """Build the policy with its canary and shadows. Raises `PoliciesError` for an unknown name or option."""
        policy = self.alone(rng)
        canary = self.canary
        if canary is not None:
            candidate = canary.alone(rng, "policy.canary")
            by_key = canary.by == "key"
            policy = Canary(
                (self.name, policy), (canary.name, candidate), rng, share=canary.share, by_key=by_key
            )
        if self.shadow:
            policy = Shadowed(policy, [
                Shadow(each.name, each.alone(randomness(rng), f"policy.shadow.{number}"))
                for number, each in enumerate(self.shadow)
            ])  # fmt: skip
        return policy


class UpstreamTlsConfig(Section):
    """TLS to workers with an https address; the certificate is verified by default."""

    ca: Path | None = Field(
        default=None,
        description="PEM; certificate authorities of the workers' certificates. None: those that this machine trusts",
    )
    certificate: Path | None = Field(
        default=None, description="PEM; what we show to workers that ask for one"
    )
    key: Path | None = Field(default=None, description="PEM; its key. None: in the same file")
    server_name: str | None = Field(
        default=None, min_length=1, description="asked for and verified. None: the address's host"
    )
    verify: bool = Field(default=True, description="false: anybody is believed to be the worker")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise ValueError("key: is for a certificate, and none is given")
        if self.ca is not None and not self.verify:
            raise ValueError("ca: is for verifying, which verify = false switches off")
        return self


class EndpointConfig(Section):
    """One endpoint: a worker and its share of the load."""

    id: Name = Field(description="unique; shown in status, metrics and logs")
    address: str = Field(description="http://host:port or https://host:port")
    region: Name = Field(default="default", description="workers of one region are near each other")
    weight: float = Field(
        default=1.0, gt=0, le=MOST_WEIGHT, allow_inf_nan=False, description="share relative to the others"
    )
    max_in_flight: int | None = Field(
        default=None, ge=1, description="most requests at once; more wait in the queue. None: no limit"
    )
    transport: Transport = Field(
        default="native", description="what carries requests: HTTP/1.1 of our own, HTTP/2, libcurl or aiohttp"
    )
    keep_alive: bool = Field(
        default=True, description="false: a new connection for each request, which is then closed"
    )
    tls: UpstreamTlsConfig | None = Field(default=None, description="instead of upstream_tls, as a whole")

    @field_validator("transport")
    @classmethod
    def _is_installed(cls, value: Transport) -> Transport:
        check_installed(value)
        return value

    @field_validator("address")
    @classmethod
    def _is_http_origin(cls, value: str) -> str:
        problem = f"must be http://host:port or https://host:port, got '{value[:LONGEST_ADDRESS]}'"
        try:
            url = urlsplit(value)
            port = url.port
        except ValueError:
            raise ValueError(problem) from None
        extras = url.path.strip("/") or url.query or url.fragment or url.username or url.password
        if not value.isprintable() or " " in value or len(value) > LONGEST_ADDRESS:
            raise ValueError(problem)
        if url.scheme not in ("http", "https") or not url.hostname or extras or port == 0:
            raise ValueError(problem)
        return value.rstrip("/")

    @property
    def alpn(self) -> str:
        """ALPN protocol for TLS (RFC 7301)."""
        return "h2" if self.transport == "http2" else "http/1.1"

    def endpoint(self) -> Endpoint:
        """Return the endpoint as the plain value that the policies use."""
        return Endpoint(self.id, self.address, self.region, self.weight, self.max_in_flight)


class TimeoutsConfig(Section):
    """Timeouts in seconds. One sweep enforces them, so each may expire up to half a second late."""

    connect: Seconds = Field(default=2.0, description="TCP handshake with a worker, and TLS")
    first_byte: Seconds = Field(
        default=25.0,
        description="request sent → first byte of the response; below the 30 s that Heroku waits",
    )
    attempt: Seconds | None = Field(
        default=None,
        description="as first_byte, while another endpoint may be asked instead. None: first_byte alone",
    )
    body_idle: Seconds = Field(default=60.0, description="between two pieces of a response, either side")
    head: Seconds = Field(
        default=10.0,
        description="a client's request head, from its first byte; its PROXY header and TLS handshake before",
    )
    request_idle: Seconds = Field(default=30.0, description="between two pieces of a request's body")
    keep_alive: Seconds = Field(
        default=95.0,
        description="an idle client connection; above the 90 s that Heroku's router keeps its own",
    )
    queue: Seconds = Field(default=30.0, description="waiting for an endpoint with room")
    total: Seconds | None = Field(
        default=None, description="a request from its head to the last byte of its response. None: no bound"
    )
    tunnel_idle: Seconds = Field(
        default=3600.0,
        description="no byte either way through a tunnel, a WebSocket for one; who sends pings is never so quiet",
    )
    linger: Seconds = Field(
        default=2.0, description="reading on after our last answer, so it is not reset away"
    )
    shutdown: Seconds = Field(default=25.0, description="finishing after SIGTERM; Heroku kills after 30 s")


class HttpConfig(Section):
    """HTTP methods that are refused unless enabled."""

    allow: tuple[Literal["CONNECT", "TRACE"], ...] = Field(
        default=(), description="methods that are refused with 405 unless they stand here"
    )


class LimitsConfig(Section):
    """Limits on memory and file descriptors."""

    queue: int = Field(
        default=10_000, ge=0, description="requests that may wait while every endpoint is full"
    )
    in_flight: int | None = Field(
        default=None,
        ge=1,
        description="requests at all endpoints at once; more wait in the queue. None: no limit",
    )
    head: int = Field(default=32_768, ge=1024, le=1 << 20, description="bytes of a request's head, then 431")
    fields: int = Field(default=100, ge=8, le=10_000, description="fields of a request's head, then 431")
    target: int = Field(default=8_192, ge=64, le=1 << 20, description="bytes of a request's target, then 414")
    body: int | None = Field(
        default=None, ge=0, description="bytes of a request's body, then 413. None: no limit"
    )
    buffer: int = Field(
        default=65_536,
        ge=1024,
        le=1 << 26,
        description="bytes of a body that may wait for a slow reader, per connection and direction",
    )
    clients: int | None = Field(
        default=None,
        ge=1,
        description="client connections; more wait in the kernel. None: from RLIMIT_NOFILE",
    )


InternalName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'+.^_`|~-]+\*?$", max_length=128)]


class HeadersConfig(Section):
    """Fields that are added to or removed from heads."""

    internal: tuple[InternalName, ...] = Field(
        default=(), description="fields taken from no client and given to none; a name, or a beginning with *"
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
        default="off", description="names and values in the manner of Heroku's router, or a JSON object"
    )
    path: str | None = Field(
        default=None, min_length=1, description="appended to, opened anew on SIGHUP. None: standard output"
    )
    sample: float = Field(
        default=1.0, ge=0, le=1, description="share of requests logged; what did not end well always is"
    )
    queue: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="entries that may wait to be written; more are dropped",
    )
    admin: bool = Field(default=True, description="log admin requests too")


class CertificateConfig(Section):
    """A certificate, chosen by SNI for the DNS names in it."""

    certificate: Path = Field(description="PEM; with its intermediates")
    key: Path | None = Field(default=None, description="PEM; its key. None: in the same file")


class TlsConfig(Section):
    """TLS for clients. Paths are relative to the working directory at the start."""

    certificate: Path | None = Field(default=None, description="PEM; with its intermediates")
    key: Path | None = Field(default=None, description="PEM; its key. None: in the same file")
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
            raise ValueError("key: is for a certificate, and none is given")
        if "client_certificate" in self.model_fields_set and self.client_ca is None:
            raise ValueError("client_certificate: needs client_ca")
        return self

    def by_field(self) -> Iterator[tuple[str, CertificateConfig]]:
        """Yield every certificate in order, with the prefix of its configuration keys."""
        if self.certificate is not None:
            yield "tls.", CertificateConfig(certificate=self.certificate, key=self.key)
        for at, certificate in enumerate(self.certificates):
            yield f"tls.certificates.{at}.", certificate
