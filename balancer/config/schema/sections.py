"""The tables of the configuration that are too short for a file of their own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, IPvAnyNetwork, SecretStr, model_validator

from balancer.config.schema.field_edits import RequestFieldEdits, ResponseFieldEdits, meant_by
from balancer.config.schema.section import (
    FieldNames,
    FileName,
    InSeconds,
    Name,
    QueueLength,
    RequestPath,
    Section,
    Share,
)
from balancer.config.schema.sticky import Token
from balancer.syntax.urls import server_url


class HttpConfig(Section):
    """HTTP methods that are refused unless enabled."""

    allow: tuple[Literal["CONNECT", "TRACE"], ...] = Field(
        default=(),
        description="list of methods | methods out of `CONNECT` and `TRACE` that are forwarded; else they get 405. A "
        "worker with CONNECT may open any tunnel: allow it only where the worker restricts destinations",
    )


class NormaliseConfig(Section):
    """Parts of a path that workers read in different ways: whether a request that has them is refused where a route
    matches by path or has `auth`, or whether they become a slash, in the path that is matched and in the one that is
    sent."""

    encoded_slash: Literal["refuse", "decode", "keep"] = Field(
        default="refuse",
        description="requests whose path has `%2F`, where a route matches by path or has `auth`: refused with 400, "
        "matched and sent with a slash, or matched as they are; see [Paths that workers read "
        "differently](#paths-that-workers-read-differently)",
    )
    backslash: Literal["refuse", "decode", "keep"] = Field(
        default="refuse", description="the same for a backslash and `%5C`"
    )
    nul: Literal["refuse", "keep"] = Field(
        default="refuse", description="requests whose path has `%00`: refused, or matched as they are"
    )
    semicolon: Literal["refuse", "keep"] = Field(default="refuse", description="the same for a semicolon")


NEEDED = ("host", "content-length", "transfer-encoding", "content-type", "connection")


def _removable(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        needed = meant_by(name, NEEDED)
        if needed is not None:
            raise ValueError(f"'{name}' would take out {needed}, which forwarding needs")
    return names


class HeadersConfig(Section):
    """Fields that are added to or removed from heads."""

    internal: Annotated[tuple[FieldNames, ...], AfterValidator(_removable)] = Field(
        default=(),
        description="list of names | fields that are removed from requests of clients and from responses, trailers "
        "included; `x-internal-*` matches a prefix. In requests `_` and other signs count as `-`, as CGI "
        "and WSGI workers read them",
    )
    forwarded: bool = Field(
        default=False,
        description="addition of `Forwarded` (RFC 7239) beside `X-Forwarded-*`; without one from a trusted proxy, it "
        "begins with what the proxy says in those",
    )
    request: RequestFieldEdits = RequestFieldEdits()
    response: ResponseFieldEdits = ResponseFieldEdits()


class CertificateConfig(Section):
    """A certificate, chosen by SNI for the DNS names in it."""

    certificate: Path = Field(
        description="one of several certificates, each in a `[[tls.certificates]]`; see [TLS](#tls)"
    )
    key: Path | None = Field(default=None, description="as `tls.key`")


class TlsConfig(Section):
    """TLS for clients. Paths are relative to the working directory at the start."""

    certificate: Path | None = Field(
        default=None,
        description="certificate for clients, PEM with its intermediates; with it, or with `tls.certificates`, "
        "clients speak https",
    )
    key: Path | None = Field(
        default=None, description="its private key, PEM without a password; default: the certificate's file"
    )
    certificates: tuple[CertificateConfig, ...] = Field(
        default=(), description="several, chosen by SNI; the first serves all other names"
    )
    min_version: Literal["1.2", "1.3"] = Field(default="1.2", description="oldest accepted version of TLS")
    client_ca: Path | None = Field(
        default=None,
        description="certificate authorities, PEM; with it clients are asked for a certificate signed by one of them",
    )
    client_certificate: Literal["optional", "required"] = Field(
        default="required",
        description="with `tls.client_ca`: whether a client without a certificate is served. An invalid one never is",
    )

    client_certificate_fields: Literal["off", "leaf", "chain"] = Field(
        default="off",
        description="with `tls.client_ca`: fields of RFC 9440 that workers get: `Client-Cert` with the client's "
        "certificate, and with `chain` the authorities behind it in `Client-Cert-Chain`; see [TLS](#tls)",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.certificate is None and not self.certificates:
            raise ValueError("certificate: is required")
        if self.key is not None and self.certificate is None:
            raise ValueError("key: needs certificate")
        if "client_certificate" in self.model_fields_set and self.client_ca is None:
            raise ValueError("client_certificate: needs client_ca")
        if self.client_certificate_fields != "off" and self.client_ca is None:
            raise ValueError("client_certificate_fields: needs client_ca")
        return self

    def by_field(self) -> Iterator[tuple[str, CertificateConfig]]:
        """Yield every certificate in order, with the prefix of its configuration keys."""
        if self.certificate is not None:
            yield "tls.", CertificateConfig(certificate=self.certificate, key=self.key)
        for at, certificate in enumerate(self.certificates):
            yield f"tls.certificates.{at}.", certificate


class ExplainConfig(Section):
    """Explanations of picks; off unless `enabled` or `header` is set. POST /-/explain turns them on for a while."""

    enabled: bool = Field(
        default=False,
        description="explanation of every pick, with counters by reason in the metrics; else `POST /-/explain` turns "
        "it on for a while; see [Live](live.md)",
    )
    header: Token | None = Field(
        default=None,
        description="name of a field | field of a request that asks for an explanation in its response",
    )
    trust: Literal["proxies", "all"] = Field(
        default="proxies",
        description="senders whose field counts: `proxies`, those of `trusted_proxies`, or `all`",
    )
    response_header: Token = Field(
        default="X-Picked", description="name of a field | field of the response with the explanation"
    )


class Http2Config(Section):
    """HTTP/2 from clients; settings apply to connections that are opened later."""

    enabled: bool = Field(
        default=True,
        description="HTTP/2 from clients: offered by ALPN over TLS, and taken in clear text from clients that begin "
        "with it; see [HTTP/2](http2.md)",
    )
    max_streams: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="requests at a time on one HTTP/2 connection; a client waits with more",
    )
    window: int = Field(
        default=262_144,
        ge=65_535,
        le=1 << 26,
        description="bytes | bytes of a request body that a client may send ahead of the worker, for each stream; at "
        "least 65535, at most 64 MiB",
    )
    flood_exempt: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="list of networks | networks whose addresses many clients share, such as those of a NAT gateway: "
        "none of their addresses is refused HTTP/2 after floods (see [HTTP/2](http2.md)). Those of "
        "`trusted_proxies` are not refused either",
    )


class LoadProbesConfig(Section):
    """Load probes; off without a path, and sent only while the policy needs them."""

    path: RequestPath | None = Field(
        default=None,
        description="path | path of the workers' load report, for policies that ask for it, such as `prequal`; see "
        "[Live](live.md)",
    )
    format: Literal["fields", "metrics"] = Field(
        default="fields",
        description="where the load is: `fields` of the response, or `metrics`, the body, of inference servers; see "
        "[Inference](#inference)",
    )
    timeout: Annotated[float, Field(gt=0, le=60), InSeconds] = Field(
        default=1.0, description="s | timeout of a probe, from the connect to the last byte; at most 60"
    )
    max_in_flight: int = Field(
        default=100, ge=1, le=10_000, description="limit of concurrent probes; further ones are not sent"
    )


class RecordConfig(Section):
    """Recording; off unless enabled here or started by POST /-/record, which requires a path."""

    enabled: bool = Field(
        default=False,
        description="recording of requests from the start; else `POST /-/record` begins it; see [Live](live.md)",
    )
    path: FileName | None = Field(
        default=None,
        min_length=1,
        description="path | recording file, appended to; required for recording. With several processes each adds its"
        " number to it",
    )
    limit: int = Field(
        default=67_108_864,
        ge=65_536,
        description="bytes | largest size of the file, at which recording ends; a request takes about 30 bytes",
    )
    queue: QueueLength = Field(
        default=10_000,
        description="requests | number of requests that may wait to be written; more are dropped and counted",
    )
    paths: bool = Field(default=False, description="recording of request paths, without their query")
    salt: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="text | salt of the hashes of keys, 16 characters or more; default: a new one for each recording",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.enabled and self.path is None:
            raise ValueError("path: is required where recording is enabled")
        return self


def _store(address: SecretStr) -> SecretStr:
    url = server_url(address.get_secret_value(), ("redis", "rediss"))
    if url is None or url.query or url.fragment or url.path not in ("", "/", "/0"):
        raise ValueError("must be redis://host:port or rediss://host:port, without a path or a query")
    if find_spec("hiredis") is None:
        raise ValueError("needs hiredis, which is not installed: pip install '.[shared]' in the checkout")
    return address


class SharedConfig(Section):
    """Sharing of requests in flight, latencies and failures between units; off without a URL."""

    url: Annotated[SecretStr, AfterValidator(_store)] | None = Field(
        default=None,
        description="address | `redis://host:port` or `rediss://user:password@host:port` of a Redis or Valkey server "
        "by which units share what they learn; see [Several units](#several-units)",
    )
    group: Name = Field(
        default="default", description="name | units of one group share; other groups of the store do not"
    )
    every: Annotated[float, Field(ge=0.01, le=0.25, allow_inf_nan=False), InSeconds] = Field(
        default=0.01,
        description="s | least time between two reports of a process, 0.01 to 0.25; longer with many units or "
        "endpoints",
    )
    verify: bool = Field(
        default=True,
        description="verification of the certificate of a `rediss://` server; false for self-signed ones, as Heroku's",
    )

    @property
    def store(self) -> str:
        """The store's address without credentials, for messages."""
        parts = urlsplit("" if self.url is None else self.url.get_secret_value())
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}:{parts.port or 6379}"


DEFAULT_PATH = "/v1/traces"
"""Path of OTLP over HTTP where the configured endpoint has none (OTLP specification)."""


def _collector(endpoint: str) -> str:
    url = server_url(endpoint)
    if url is None or url.query or url.fragment or "@" in url.netloc or not endpoint.isprintable():
        raise ValueError("must be http://host:port or https://host:port, with or without a path")
    if not _has_exporter():
        raise ValueError("needs OpenTelemetry, which is not installed: pip install '.[otel]' in the checkout")
    return endpoint if url.path.strip("/") else f"{url.scheme}://{url.netloc}{DEFAULT_PATH}"


def _has_exporter() -> bool:
    """Return whether the packages of the extra are installed, without importing more than their namespaces."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


class TracingConfig(Section):
    """Propagation of traceparent and tracestate; off unless enabled or an endpoint is given."""

    enabled: bool = Field(
        default=False,
        description="propagation of `traceparent` and `tracestate` to workers; default: true if `tracing.endpoint` is"
        " given; see [Tracing](tracing.md)",
    )
    trust: Literal["proxies", "all"] = Field(
        default="proxies",
        description="senders whose traces are continued: `proxies`, those of `trusted_proxies`, or `all`; for others "
        "a new trace begins",
    )
    sample: Share = Field(
        default=0.01,
        description="share of the traces begun here that are sampled; a client's trace that is continued keeps its "
        "own decision",
    )
    endpoint: Annotated[str, AfterValidator(_collector)] | None = Field(
        default=None,
        description="http:// or https:// | OpenTelemetry collector that spans are sent to, by OTLP over HTTP; without"
        " a path, to `/v1/traces`. Needs the extra `otel`: `pip install '.[otel]'` in the checkout",
    )
    service: Name = Field(default="steelyard", description="name | `service.name` of the spans")
    queue: QueueLength = Field(
        default=4_096,
        description="spans | number of spans that may wait for export, 1 to 1000000; more are dropped and counted",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self._has("endpoint") and self.endpoint is not None:
            self._derive(enabled=True)
            if not self.enabled:
                raise ValueError("endpoint: needs enabled = true")
        return self
