"""The tables [names] and [route_watch] of the configuration: DNS resolution and monitoring of connect times."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from balancer.config.schema.discovery import Servers
from balancer.config.schema.section import Seconds, Section

Week = Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)]


class NamesConfig(Section):
    """Resolution of the host names in endpoint addresses."""

    resolver: Literal["system", "dns"] = Field(
        default="system",
        description="system: getaddrinfo in a thread; dns: name servers, with their TTLs; default: dns where "
        "servers are given",
    )
    servers: Servers = Field(
        default=(),
        description="name servers for dns, as address or address:port. Empty: those of this machine",
    )
    ttl: Seconds = Field(
        default=30.0, description="TTL in seconds of answers of the system resolver, which reports none"
    )
    min_ttl: Seconds = Field(default=1.0, description="minimum TTL in seconds")
    max_ttl: Seconds = Field(default=300.0, description="maximum TTL in seconds")
    max_stale: Week = Field(
        default=86_400.0,
        description="seconds that an expired answer is used while there is no newer one. 0: never",
    )
    negative_ttl: Seconds = Field(default=5.0, description="seconds from a failed lookup to the next one")
    timeout: Seconds = Field(default=5.0, description="timeout of a lookup in seconds")
    prefetch: bool = Field(
        default=True,
        description="look names up in the background. false: when a connection needs them",
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

    enabled: bool = Field(default=True, description="monitor connect times")
    factor: float = Field(
        default=2.0,
        gt=1,
        le=100,
        allow_inf_nan=False,
        description="multiple of the baseline that counts as a change",
    )
    minimum: Seconds = Field(default=0.005, description="seconds above the baseline that count as a change")
    duration: Seconds = Field(default=60.0, description="seconds that a change must last")
    interval: Seconds | None = Field(
        default=None,
        ge=1,
        description="seconds without a connect after which a test connection is opened. None: never",
    )
