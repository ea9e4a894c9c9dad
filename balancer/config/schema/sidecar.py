"""The configuration of `balancer sidecar`: origins and their common settings.

Every table has the meaning that it has for `balancer serve`. Each origin becomes a named cluster with one endpoint. The
environment is ignored: `BALANCER_…` is for `balancer serve`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints, ValidationError, model_validator

from balancer.config.loading import Settings, file_layer
from balancer.config.problems import ConfigError, config_error, line_for, problems_of, without_credentials
from balancer.config.schema.admin import AdminConfig
from balancer.config.schema.endpoint import CLIENT, HttpOrigin, Transport, UpstreamTlsConfig
from balancer.config.schema.limits import Limits, Timeouts
from balancer.config.schema.listen import HostPort, ListenAddress
from balancer.config.schema.log import LogConfig
from balancer.config.schema.names import NamesConfig, RouteWatchConfig
from balancer.config.schema.pool import PoolConfig
from balancer.config.schema.retries import RetryConfig
from balancer.config.schema.section import Count, Name, Section, require_unique
from balancer.config.sources import Layer, merge
from balancer.syntax.networks import is_this_machine
from balancer.syntax.urls import host_in

HostName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$", max_length=253, to_lower=True)
]
Prefix = Annotated[str, StringConstraints(pattern=r"^/([A-Za-z0-9][A-Za-z0-9._~-]*/)*$", max_length=256)]

MARKER = "Steelyard-Sidecar"
"""Response field of the sidecar's own answers; it is removed from the responses of origins."""

LISTEN = "127.0.0.1:8081"

OPTIONS = {"allow_remote": "--allow-remote", "listen": "--listen", "origins": "--origin"}
"""Options of the command line by the keys that they set."""


class OriginConfig(Section):
    """One origin. An omitted key has its common value."""

    name: Name = Field(description="unique; shown in status, metrics and logs")
    url: HttpOrigin = Field(description="https://host or http://host:port; no path")
    host: HostName | None = Field(
        default=None, description="requests with this Host. None: that of the url, unless others have it, too"
    )
    prefix: Prefix | None = Field(
        default=None, description="paths that begin so, asked of this machine by its own name; taken off"
    )
    transport: Transport = Field(default="native", description="what carries requests")
    keep_alive: bool = Field(default=True, description="false: a new connection for each request")
    max_in_flight: Count | None = Field(default=None, description="requests at once. None: no limit")
    retries: int = Field(default=1, ge=0, le=1, description="further attempts where that is safe")
    tls: UpstreamTlsConfig = UpstreamTlsConfig()
    pool: PoolConfig | None = Field(default=None, description="instead of the common pool, as a whole")
    timeouts: Timeouts | None = Field(default=None, description="instead of the common ones, as a whole")

    @property
    def url_host(self) -> str:
        """Host of the url in the form in which hosts are compared, without brackets."""
        return host_in(urlsplit(self.url).netloc.encode()).decode().strip("[]")


class SidecarConfig(Section):
    """The whole configuration of a sidecar."""

    listen: HostPort = Field(default=LISTEN, description="host:port")
    allow_remote: bool = Field(default=False, description="listen where other machines can reach it")
    own_names: tuple[HostName, ...] = Field(
        default=(), description="names of this machine, beside localhost and addresses, for prefixes"
    )
    origins: tuple[OriginConfig, ...] = Field(min_length=1)
    pool: PoolConfig = PoolConfig()
    timeouts: Timeouts = Timeouts()
    retry: RetryConfig = RetryConfig()
    limits: Limits = Limits()
    names: NamesConfig = NamesConfig()
    route_watch: RouteWatchConfig = RouteWatchConfig()
    log: LogConfig = LogConfig()
    admin: AdminConfig = AdminConfig()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for key in ("name", "prefix"):
            values = [getattr(origin, key) for origin in self.origins]
            require_unique(values, f"origins: {key} '{{value}}' is used twice")
        require_unique(map(self.host_of, self.origins), "origins: host '{value}' is used twice")
        for origin in self.origins:
            if self.host_of(origin) is None and origin.prefix is None:
                raise ValueError(
                    f"origins: nothing leads to '{origin.name}': others have its host, give it one or a prefix"
                )
        if not self.allow_remote and not is_this_machine(ListenAddress.parse(self.listen).host):
            raise ValueError(
                f"listen: {self.listen} can be reached from other machines, and every client that "
                "reaches it can use the origins; say allow_remote = true if that is meant"
            )
        return self

    def host_of(self, origin: OriginConfig) -> str | None:
        """Return the Host that selects an origin; None if only its prefix does."""
        if origin.host is not None:
            return origin.host
        alike = sum(other.url_host == origin.url_host and other.host is None for other in self.origins)
        return origin.url_host if alike == 1 else None

    def settings(self) -> SidecarSettings:
        """Return the settings of the server: those of all clients, and a named cluster for each origin."""
        keys = ("listen", "log", "admin", "pool", "timeouts", "retry", "limits", "names", "route_watch")
        common: dict[str, Any] = {key: getattr(self, key) for key in keys}
        common |= {"headers": {"internal": (MARKER,)}, "health_checks": {"first_connect": False}}
        common["clusters"] = {origin.name: self._cluster_of(origin) for origin in self.origins}
        return SidecarSettings(sidecar=self, **common)

    def _cluster_of(self, origin: OriginConfig) -> dict[str, Any]:
        endpoint = {
            "id": origin.name,
            "address": origin.url,
            "host": CLIENT,  # of a head that has the origin's already
            "transport": origin.transport,
            "keep_alive": origin.keep_alive,
            "max_in_flight": origin.max_in_flight,
            "tls": origin.tls,
        }
        own = {key: getattr(origin, key) or getattr(self, key) for key in ("pool", "timeouts")}
        return {"endpoints": [endpoint], "retries": origin.retries, **own}


class SidecarSettings(Settings):
    """`Settings` of a sidecar, whose requests have no routes and no default cluster."""

    sidecar: SidecarConfig

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        return self


def read_sidecar(path: Path | None, overrides: Mapping[str, Any]) -> SidecarConfig:
    """Read the file and override its keys by `overrides`. The files that the configuration names are not read. Raises
    `ConfigError`, for all problems at once.
    """
    layers = [file_layer(path, SidecarConfig)] if path is not None else []
    merged = merge([*layers, Layer(dict(overrides), lambda place: OPTIONS.get(str(place[0]), ""))])
    try:
        return SidecarConfig.model_validate(merged.document)
    except ValidationError as error:
        raise config_error([
            line_for(problem, merged.source, path) for problem in problems_of(error, SidecarConfig)
        ]) from None  # fmt: skip


def origins_from(given: Sequence[str]) -> list[dict[str, str]]:
    """Parse `URL` or `NAME=URL` from the command line. A name is also the prefix /NAME/; a single origin gets all
    paths. Raises `ConfigError`.
    """
    origins: list[dict[str, str]] = []
    for words in given:
        name, separator, url = words.partition("=")
        if not separator or "://" in name:
            name, url = "", words
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:
            host = ""
        if not host:
            message = f"--origin: must be https://host or NAME=https://host, got '{words}'"
            raise ConfigError(without_credentials(message))
        label = name or host.replace(":", "-")
        prefix = "/" if len(given) == 1 else f"/{label}/"
        origins.append({"name": label, "url": url, "prefix": prefix})
    return origins
