"""The table [discovery.kubernetes] of the configuration: endpoints from the EndpointSlices of a Service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from balancer.config.schema.endpoint import http_origin
from balancer.config.schema.section import MOST_WEIGHT, Name, Seconds, Section

KubernetesName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]

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

    service: KubernetesName = Field(description="name of the Service")
    namespace: KubernetesName | None = Field(
        default=None, description="namespace of the Service. None: that of the pod; required with server"
    )
    port: ServicePort | None = Field(
        default=None,
        description="port of the pods (targetPort), by its name in the Service or its number. None: the only one",
    )
    scheme: Literal["http", "https"] = Field(default="http", description="scheme of the endpoints")
    region: Name | None = Field(
        default=None,
        description="region of endpoints whose zone is not in zones; without zones, of all endpoints. None: the zone",
    )
    zones: dict[str, Name] = Field(default={}, description="regions by zone. Empty: each zone is a region")
    weight: float = Field(
        default=1.0, gt=0, le=MOST_WEIGHT, allow_inf_nan=False, description="weight of each endpoint"
    )
    max_in_flight: int | None = Field(
        default=None, ge=1, description="maximum requests in flight at each endpoint. None: no limit"
    )
    round_trip: Seconds | None = Field(
        default=None,
        description="seconds of a round trip, where TCP handshakes do not show it. None: those of handshakes",
    )
    allow_empty: bool = Field(
        default=False, description="accept a Service without ready endpoints, which removes all of them"
    )
    server: str | None = Field(
        default=None,
        description="API server, https://host:port. None: the one of the cluster that the balancer runs in",
    )
    token_file: Path | None = Field(
        default=None,
        description="file with a bearer token, read for each request. None: that of the pod's service account; "
        "with server: none",
    )
    ca_file: Path | None = Field(
        default=None,
        description="PEM; certificate authorities of the API server. None: those of the pod's service account; "
        "with server: those of the operating system",
    )
    timeout: Seconds = Field(
        default=5.0, description="seconds for an answer of the API server; after it the known endpoints stay"
    )

    @field_validator("server")
    @classmethod
    def _is_http_origin(cls, value: str | None) -> str | None:
        return None if value is None else http_origin(value)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.server is not None and self.namespace is None:
            raise ValueError("namespace: is required with server")
        return self

    @property
    def source(self) -> str:
        """Name of the source; without a configured namespace the balancer completes it."""
        return f"kubernetes {self.service if self.namespace is None else f'{self.namespace}/{self.service}'}"
