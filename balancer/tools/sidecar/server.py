"""`balancer sidecar`: a server with one listening socket, a front, and a cluster for each origin.

What is common to all clients belongs to the front, a cluster without endpoints; the exchange belongs to the origin's
cluster. One sweep serves all.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from aiohttp import web

from balancer.build import build, http2_library
from balancer.cluster.cluster import Cluster
from balancer.cluster.discovery.discovery import RemoteSource
from balancer.cluster.runtime_config import RuntimeConfig, runtime_config_of
from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.config.schema.sidecar import LISTEN, OriginConfig, SidecarConfig, origins_from, read_sidecar
from balancer.control.admin.application import AdminApplication
from balancer.control.admin.families import exposed, families_of
from balancer.control.admin.handlers import AdminHandlers
from balancer.control.admin.health import DRAINING, SERVING
from balancer.control.admin.merge import merged_metrics
from balancer.control.admin.metrics import metrics_text
from balancer.control.admin.routes_report import events_status, names_status, watch_status
from balancer.control.admin.socket_path import AdminSockets
from balancer.control.admin.status import endpoint_status, log_status, reload_status
from balancer.control.control_plane import ControlPlane
from balancer.control.reload import Prepared, Reloads
from balancer.process.lifecycle import attend, say
from balancer.process.server import Server, build_cluster, new_event_loop
from balancer.routes.table import RouteTable
from balancer.tls.contexts import TlsProblem, upstream_tls_of
from balancer.tools.sidecar.downstream import OriginConnection
from balancer.tools.sidecar.origins import Origin, Origins
from policies.clock import Clock
from policies.loading.source import Source


class SidecarAdmin(AdminApplication):
    """The admin interface of the sidecar.

    The sidecar is ready even if an origin is unreachable: the other origins are still served.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        reloads: Reloads,
        origins: Origins,
        token: bytes | None,
        sockets: AdminSockets | None = None,
    ) -> None:
        self._origins = origins
        super().__init__(control_plane, reloads, token, sockets=sockets)

    def _new_handlers(self) -> AdminHandlers:
        return SidecarHandlers(self, self._control_plane, self._reloads, self._origins)

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self.readiness == SERVING

    @property
    def readiness(self) -> str:
        """Readiness in words."""
        return DRAINING if self._cluster.process.is_draining else SERVING


class SidecarHandlers(AdminHandlers):
    """The routes of the sidecar's admin interface."""

    def __init__(
        self, application: AdminApplication, control_plane: ControlPlane, reloads: Reloads, origins: Origins
    ) -> None:
        super().__init__(lambda: application.token, application.log, control_plane, reloads)
        self._application, self._origins = application, origins

    def _routes(self) -> list[web.RouteDef]:
        return [
            *self._probes(),
            web.get("/-/status", self._status),
            web.get("/-/metrics", self._metrics),
            web.post("/-/reload", self._reload),
        ]

    async def _ready(self, request: web.Request) -> web.Response:
        """Answer readiness, with the reachability of each origin."""
        origins = {origin.name: is_reachable(origin) for origin in self._origins.all}
        document = {"ready": self._application.is_ready, "origins": origins}
        return web.json_response(document, status=200 if self._application.is_ready else 503)

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(sidecar_status(self._control_plane, self._origins))

    async def _metrics(self, request: web.Request) -> web.Response:
        texts = [
            metrics_text(one)
            for one in (self._control_plane, *(origin.control_plane for origin in self._origins.all))
        ]
        body = await asyncio.to_thread(merged_metrics, [text.decode() for text, _ in texts])
        document = sidecar_status(self._control_plane, self._origins)
        body += exposed(family.of(document) for family in OF_ORIGINS)
        return web.Response(body=body, headers={"Content-Type": texts[0][1]})


def is_reachable(origin: Origin) -> bool:
    """Return whether the latest connection attempts succeeded, or none was made yet."""
    return all(
        state.is_reachable and not state.record.is_unreachable for state in origin.cluster.router.states
    )


def sidecar_status(control_plane: ControlPlane, origins: Origins) -> dict[str, Any]:
    """Return the document of /-/status. Durations are in seconds."""
    front, process = control_plane.cluster, control_plane.cluster.process
    return {
        "version": version("steelyard"),
        "build": build(),
        "http2_library": http2_library(),
        "pid": os.getpid(),
        "uptime": round(process.now() - process.started_at, 3),
        "draining": process.is_draining,
        "clients": len(process.downstreams),
        "connections": process.counts.connections,
        "in_flight": process.in_flight,
        "requests": sum(origin.cluster.counts.requests for origin in origins.all),
        "errors": dict(front.counts.errors),
        "access_log": log_status(front),
        "reload": reload_status(control_plane),
        "origins": [origin_status(origin) for origin in origins.all],
    }


def origin_status(origin: Origin) -> dict[str, Any]:
    """Return one origin: its selectors, counts, and the status of its endpoint."""
    cluster, counts = origin.cluster, origin.cluster.counts
    return {
        "id": origin.name,
        "url": origin.url,
        "host": origin.host,
        "prefix": origin.prefix,
        "requests": counts.requests,
        "retried": counts.retried,
        "abandoned": counts.abandoned,
        "queued": len(cluster.queue),
        "errors": dict(counts.errors),
        "endpoint": next(
            (endpoint_status(origin.control_plane, state) for state in cluster.router.states), None
        ),
        "names": names_status(cluster),
        "route_watch": watch_status(cluster),
        "events": events_status(cluster),
    }


OF_ORIGINS = families_of("""
counter steelyard_origin_requests origins[].requests       Requests for an origin
counter steelyard_origin_errors   origins[].errors{reason} Answers of our own in place of the origin's
""")

LEAST_CONNECTIONS = 8
"""Lower limit of connections to each origin."""


class SidecarServer(Server):
    """A `Server` whose requests go to `origins`. `read` returns the current configuration for a reload."""

    def __init__(
        self,
        config: SidecarConfig,
        clock: Clock | None = None,
        read: Callable[[], SidecarConfig] | None = None,
    ) -> None:
        self._read = read or (lambda: config)
        self._next: tuple[SidecarConfig, list[RuntimeConfig]] = config, []  # of the reload in progress
        super().__init__(config.front(), clock, self._prepare)
        self._leaving: list[ControlPlane] = []  # of removed origins with requests in flight
        self.origins = Origins([self._origin(config, one) for one in config.origins], config.own_names)
        self._share()
        self._admin = SidecarAdmin(
            self.control_plane,
            self.reloads,
            self.origins,
            self.control_plane.config.token,
            self.listening.admin,
        )

    def _origin(self, config: SidecarConfig, one: OriginConfig) -> Origin:
        return _named(config, one, build_cluster(runtime_config_of(config.unit_of(one)), self.process))

    def _downstream(self, routes: RouteTable) -> OriginConnection:
        return OriginConnection(self.cluster, self._admin.exchange, self.origins)

    @property
    def control_planes(self) -> list[ControlPlane]:
        """The control planes of all origins, and of removed ones with requests in flight."""
        return [*(origin.control_plane for origin in self.origins.all), *self._leaving]

    @property
    def clusters(self) -> list[Cluster]:
        return [self.cluster, *(one.cluster for one in self.control_planes)]

    async def start(self) -> None:
        """Start listening and serving."""
        for one in self.control_planes:
            one.cluster.pools.routes.sweep(self.cluster.now())
        await super().start()

    def _look(self, now: float) -> None:
        super()._look(now)
        self._leaving = [one for one in self._leaving if one.cluster.router.in_flight]
        self._share()
        for one in self.control_planes:
            one.sweep(now)

    def _share(self) -> None:
        """Apply the front's access log to all clusters, and divide the descriptors among them."""
        every = self.control_planes
        room = max(LEAST_CONNECTIONS, self._allowed.upstreams // max(1, len(every)))
        for one in every:
            one.cluster.pools.limit = room
            if one.access_log is not self.process.access_log:
                one.apply_access_log()

    async def stop(self, *, is_patient: bool = False) -> bool:
        """Drain, stop like any server, then close the clusters of the origins."""
        is_finished = await super().stop(is_patient=is_patient)
        for one in self.control_planes:
            await one.stop()
        return is_finished

    # --- reload

    def _prepare(self, files: Sequence[Source] = ()) -> Settings:
        """Read and validate the configuration, in a thread; every expected error is raised here."""
        config = self._read()
        self._next = config, [runtime_config_of(config.unit_of(one)) for one in config.origins]
        return config.front()

    def _commit_prepared(self, prepared: Prepared) -> list[RemoteSource]:
        config, runtime_configs = self._next
        known = {origin.name for origin in self.origins.all}
        new = {one.name: self._origin(config, one) for one in config.origins if one.name not in known}
        gone = super()._commit_prepared(prepared)  # nothing can fail from here on
        self._apply_origins(config, runtime_configs, new)
        return gone

    def _apply_origins(
        self, config: SidecarConfig, runtime_configs: list[RuntimeConfig], new: dict[str, Origin]
    ) -> None:
        known = {origin.name: origin.control_plane for origin in self.origins.all}
        kept: list[Origin] = []
        for one, runtime_config in zip(config.origins, runtime_configs, strict=True):
            control_plane = known.pop(one.name, None)
            if control_plane is not None:
                control_plane.apply(runtime_config)
                control_plane.registry.apply(runtime_config)
            kept.append(new[one.name] if control_plane is None else _named(config, one, control_plane))
        for control_plane in known.values():
            control_plane.replace_endpoints([])
            self._leaving.append(control_plane)
        self.origins.apply(kept, config.own_names)
        self._share()


def _named(config: SidecarConfig, one: OriginConfig, control_plane: ControlPlane) -> Origin:
    return Origin(one.name, one.url, config.host_of(one), one.prefix, control_plane)


def load_sidecar(path: Path | None, overrides: Mapping[str, Any]) -> SidecarConfig:
    """Read the configuration as `read_sidecar` does. Raises `ConfigError`, also for certificate files."""
    config = read_sidecar(path, overrides)
    for at, origin in enumerate(config.origins):
        try:
            upstream_tls_of(config.unit_of(origin))
        except TlsProblem as error:
            raise ConfigError(str(error).replace("endpoints.0.", f"origins.{at}.")) from None
    return config


EPILOG = """\b
Examples:
  balancer sidecar --origin https://api.example.com
  balancer sidecar --origin pay=https://api.pay.example --origin mail=https://mail.example
  balancer sidecar --config sidecar.toml
\b
Then:
  curl -H 'Host: api.pay.example' http://127.0.0.1:8081/v1/charges
  curl http://127.0.0.1:8081/pay/v1/charges
  balancer status --url http://127.0.0.1:8081
"""


@click.command("sidecar", epilog=EPILOG, short_help="Forward an application's requests to external origins.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file; see docs/sidecar.md.")
@click.option(
    "--origin",
    multiple=True,
    metavar="[NAME=]URL",
    help="A third party; may be repeated. Replaces the file's.",
)
@click.option("--listen", metavar="HOST:PORT", help=f"Default: {LISTEN}.")
@click.option("--allow-remote", is_flag=True, help="Listen where other machines can reach it.")
def sidecar(config: Path | None, origin: tuple[str, ...], listen: str | None, allow_remote: bool) -> None:
    """Forward an application's requests to external origins from this machine, over kept connections.

    The application connects to this machine and selects an origin by its Host or by its path prefix.
    """
    if config is None and not origin:
        raise ConfigError("origins: give --config FILE, or one --origin https://host or more")
    given: dict[str, Any] = {}
    if origin:
        given["origins"] = origins_from(origin)
    if listen is not None:
        given["listen"] = listen
    if allow_remote:
        given["allow_remote"] = True

    def read() -> SidecarConfig:
        return load_sidecar(config, given)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        sys.exit(0 if runner.run(_serve(read(), read)) else 1)


async def _serve(config: SidecarConfig, read: Callable[[], SidecarConfig]) -> bool:
    server = SidecarServer(config, read=read)

    def ready() -> str:
        number = len(config.origins)
        return (
            f"balancer sidecar ready on http://{server.address} ({number} origin{'s' if number != 1 else ''})"
        )

    return await attend(server, ready, say)
