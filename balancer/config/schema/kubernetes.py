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
    model_validator,
)

from balancer.config.schema.endpoint import CLIENT, HttpOrigin, WorkerHost
from balancer.config.schema.section import EndpointWeight, Name, Priority, Seconds, Section

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
    max_in_flight: int | None = Field(
        default=None, ge=1, description="requests | limit of requests in flight of each endpoint"
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
