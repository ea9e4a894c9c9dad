"""The tables of the configuration that are too short for a file of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from balancer.config.schema.section import Seconds, Section
from balancer.syntax.field_names import in_cgi


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


class NormaliseConfig(Section):
    """Parts of a path that workers read in different ways: whether a request that has them is refused where a route
    matches by path, or whether they become a slash, in the path that is matched and in the one that is sent."""

    encoded_slash: Literal["refuse", "decode", "keep"] = Field(
        default="refuse", description="%2F within a path"
    )
    backslash: Literal["refuse", "decode", "keep"] = Field(
        default="refuse", description="backslash or %5C within a path"
    )
    nul: Literal["refuse", "keep"] = Field(default="refuse", description="%00 within a path")
    semicolon: Literal["refuse", "keep"] = Field(default="refuse", description="semicolon within a path")


class LimitsConfig(Section):
    """Limits on memory and file descriptors."""

    queue: int = Field(default=10_000, ge=0, description="maximum requests in the wait queue")
    in_flight: int | None = Field(
        default=None,
        ge=1,
        description="maximum requests in flight at all endpoints; more wait in the queue. None: no limit",
    )
    client_requests: int = Field(
        default=10_000,
        ge=1,
        description="maximum requests of one client address, of IPv6 one /64, in flight and waiting; otherwise 429",
    )
    pending: int = Field(
        default=33_554_432,
        ge=1_000_000,
        description="maximum bytes of requests that wait, and of large heads in flight, per process; otherwise 503",
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
