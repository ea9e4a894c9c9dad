"""The tables [names] and [watch] of the configuration: DNS resolution, and monitoring of the routes to endpoints."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from balancer.config.discovery import Servers
from balancer.config.sections import Seconds, Section
from balancer.upstream.lookup import DnsLookup, SystemLookup
from balancer.upstream.names import NamesPlan
from balancer.upstream.resolved_name import NameRules
from balancer.upstream.route_baseline import BaselineRules
from balancer.upstream.route_watch import WatchPlan

Week = Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)]


class NamesConfig(Section):
    """Resolution of the host names in endpoint addresses."""

    resolver: Literal["system", "dns"] = Field(
        default="system",
        description="system: as this machine does it, in a thread; dns: name servers, with TTLs",
    )
    servers: Servers = Field(
        default=(),
        description="with dns: address or address:port of those to ask. None named: this machine's",
    )
    ttl: Seconds = Field(default=30.0, description="seconds; of answers of the system, which tells none")
    shortest: Seconds = Field(default=1.0, description="seconds that an answer holds, whatever its TTL")
    longest: Seconds = Field(default=300.0, description="seconds that an answer holds at most")
    stale: Week = Field(
        default=86_400.0,
        description="seconds that an answer serves after that, while there is no newer one. 0: never",
    )
    negative: Seconds = Field(
        default=5.0, description="seconds without another look-up after one that failed"
    )
    timeout: Seconds = Field(default=5.0, description="seconds for a look-up")
    ahead: bool = Field(
        default=True,
        description="false: names are looked up when a connection needs them, as most clients do it",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.servers and self.resolver != "dns":
            raise ValueError('servers: are for resolver = "dns"')
        if self.shortest > self.longest:
            raise ValueError(f"shortest: must not be above longest ({self.longest:g}), got {self.shortest:g}")
        return self

    def plan(self) -> NamesPlan:
        """Return the resolver settings as plain values."""
        rules = NameRules(self.shortest, self.longest, self.stale, self.negative)
        if self.resolver == "dns":
            return NamesPlan(rules, DnsLookup(self.servers, self.timeout), self.resolver, self.ahead)
        return NamesPlan(rules, SystemLookup(self.ttl, self.timeout), self.resolver, self.ahead)


class WatchConfig(Section):
    """Detection of endpoints whose connect time has departed from its baseline."""

    enabled: bool = Field(default=True, description="false: connections are not looked at")
    factor: float = Field(
        default=2.0, gt=1, le=100, allow_inf_nan=False, description="times what is usual is a departure"
    )
    least: Seconds = Field(default=0.005, description="seconds above what is usual, that it must be, too")
    lasting: Seconds = Field(default=60.0, description="seconds that every connection must show it")
    every: Seconds | None = Field(
        default=None,
        ge=1,
        description="seconds without a connection after which the watch opens one. None: it never does",
    )

    def plan(self) -> WatchPlan:
        """Return the watch settings as plain values."""
        rules = BaselineRules(factor=self.factor, least=self.least, lasting=self.lasting)
        return WatchPlan(self.enabled, rules, self.every)
