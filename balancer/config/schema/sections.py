"""The tables of the configuration that are too short for a file of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from balancer.config.schema.section import Section
from balancer.syntax.field_names import in_cgi


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
