"""The tables of the configuration that are too short for a file of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from balancer.config.schema.field_edits import RequestFieldEdits, ResponseFieldEdits
from balancer.config.schema.section import FieldNames, Section
from balancer.syntax.field_names import in_cgi


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


class HeadersConfig(Section):
    """Fields that are added to or removed from heads."""

    internal: tuple[FieldNames, ...] = Field(
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
