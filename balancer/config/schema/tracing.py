"""The table [tracing] of the configuration: W3C Trace Context, and the export of OpenTelemetry spans."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from balancer.config.schema.section import Name, Section
from balancer.syntax.urls import server_url

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
    sample: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="share of the traces begun here that are sampled; a client's trace that is continued keeps its "
        "own decision",
    )
    endpoint: Annotated[str, AfterValidator(_collector)] | None = Field(
        default=None,
        description="http:// or https:// | OpenTelemetry collector that spans are sent to, by OTLP over HTTP; without"
        " a path, to `/v1/traces`. Needs the extra `otel`: `pip install '.[otel]'` in the checkout",
    )
    service: Name = Field(default="steelyard", description="name | `service.name` of the spans")
    queue: int = Field(
        default=4_096,
        ge=1,
        le=1_000_000,
        description="spans | number of spans that may wait for export, 1 to 1000000; more are dropped and counted",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self._has("endpoint") and self.endpoint is not None:
            self._derive(enabled=True)
            if not self.enabled:
                raise ValueError("endpoint: needs enabled = true")
        return self
