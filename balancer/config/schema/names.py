"""The tables [names] and [route_watch] of the configuration: DNS resolution and monitoring of connect times."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from balancer.config.schema.discovery import Servers
from balancer.config.schema.section import InSeconds, Seconds, Section

Week = Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False), InSeconds]


class NamesConfig(Section):
    """Resolution of the host names in endpoint addresses."""

    resolver: Literal["system", "dns"] = Field(
        default="system",
        description='resolver of host names in addresses: getaddrinfo, or name servers; default: `"dns"` where '
        "`servers` are given; see [Names](#names)",
    )
    servers: Servers = Field(
        default=(),
        description='list of addresses | name servers for `"dns"`, `"192.0.2.1"` or `"192.0.2.1:5353"`; empty: those '
        "of this machine",
    )
    ttl: Seconds = Field(default=30.0, description='TTL of answers of `"system"`, which gives none')
    min_ttl: Seconds = Field(
        default=1.0, description="lower bound of a TTL; default: `max_ttl` if that is shorter"
    )
    max_ttl: Seconds = Field(
        default=300.0, description="upper bound of a TTL; default: `min_ttl` if that is longer"
    )
    max_stale: Week = Field(
        default=86_400.0,
        description="s | time for which an expired answer is used while there is no newer one; 0 to 604800",
    )
    negative_ttl: Seconds = Field(default=5.0, description="time from a failed lookup to the next one")
    timeout: Seconds = Field(default=5.0, description="timeout of a lookup")
    prefetch: bool = Field(
        default=True,
        description="lookups in the background; false: a lookup when a connection needs it",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.servers:
            self._derive(resolver="dns")
        if self.servers and self.resolver != "dns":
            raise ValueError('servers: apply only to resolver = "dns"')
        if self._has("max_ttl"):
            self._derive(min_ttl=min(self.min_ttl, self.max_ttl))
        self._derive(max_ttl=max(self.max_ttl, self.min_ttl))
        if self.min_ttl > self.max_ttl:
            raise ValueError(f"min_ttl: must not be above max_ttl ({self.max_ttl:g}), got {self.min_ttl:g}")
        return self


class RouteWatchConfig(Section):
    """Detection of endpoints whose connect time has departed from its baseline."""

    enabled: bool = Field(
        default=True, description="detection of changed connect times; see [Route watch](#route-watch)"
    )
    factor: float = Field(
        default=2.0,
        gt=1,
        le=100,
        allow_inf_nan=False,
        description="1–100 | multiple of the baseline that counts as a change",
    )
    minimum: Seconds = Field(default=0.005, description="difference to the baseline that counts as a change")
    duration: Seconds = Field(default=60.0, description="time for which every connect must show the change")
    interval: Seconds | None = Field(
        default=None,
        ge=1,
        description="time without a connect after which a test connection is opened; at least 1. Default: never",
    )
