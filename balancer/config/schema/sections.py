"""The tables of the configuration that are too short for a file of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, IPvAnyNetwork, SecretStr, model_validator

from balancer.config.schema.field_edits import RequestFieldEdits, ResponseFieldEdits, meant_by
from balancer.config.schema.section import FieldNames, FileName, InSeconds, Section
from balancer.config.schema.sticky import Token


class HttpConfig(Section):
    """HTTP methods that are refused unless enabled."""

    allow: tuple[Literal["CONNECT", "TRACE"], ...] = Field(
        default=(),
        description="list of methods | methods out of `CONNECT` and `TRACE` that are forwarded; else they get 405. A "
        "worker with CONNECT may open any tunnel: allow it only where the worker restricts destinations",
    )


class NormaliseConfig(Section):
    """Parts of a path that workers read in different ways: whether a request that has them is refused where a route
    matches by path, or whether they become a slash, in the path that is matched and in the one that is sent."""

    encoded_slash: Literal["refuse", "decode", "keep"] = Field(
        default="refuse",
        description="requests whose path has `%2F`, where a route matches by path: refused with 400, matched and sent"
        " with a slash, or matched as they are; see [Paths that workers read "
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
        default=False, description="addition of `Forwarded` (RFC 7239) beside `X-Forwarded-*`"
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

    path: str | None = Field(
        default=None,
        pattern=r"^/[!-~]*$",
        description="path | path of the workers' load report, for policies that ask for it, such as `prequal`; see "
        "[Live](live.md)",
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
    queue: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
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
