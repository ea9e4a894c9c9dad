"""`balancer sidecar`: a server with one listening socket, a front, and a cluster for each origin.

What is common to all clients belongs to the front, the default cluster without endpoints; the exchange belongs to the
origin's, a named cluster.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from aiohttp import web

from balancer.cluster.runtime_config import RuntimeConfig
from balancer.config.problems import ConfigError
from balancer.config.schema.sidecar import LISTEN, SidecarConfig, SidecarSettings, origins_from, read_sidecar
from balancer.control.admin.application import AdminApplication
from balancer.control.admin.families import exposed, families_of
from balancer.control.admin.handlers import AdminHandlers
from balancer.control.admin.health import DRAINING, SERVING
from balancer.control.admin.merge import merged
from balancer.control.admin.metrics import metrics_text
from balancer.control.admin.routes_report import events_status, names_status, watch_status
from balancer.control.admin.socket_path import AdminSockets
from balancer.control.admin.status import endpoint_status, log_status, process_counts, reload_status
from balancer.control.control_plane import ControlPlane
from balancer.control.reload import Reloads
from balancer.process.lifecycle import attend, say
from balancer.process.server import Server, new_event_loop
from balancer.routes.table import RouteTable
from balancer.tls.contexts import upstream_tls_of
from balancer.tools.sidecar.downstream import OriginConnection
from balancer.tools.sidecar.origins import Origin, Origins
from policies.clock import Clock


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
        text, content_type = metrics_text(self._control_plane)
        document = sidecar_status(self._control_plane, self._origins)
        text += exposed(family.of(document) for family in OF_ORIGINS)
        return web.Response(body=text, headers={"Content-Type": content_type})


def is_reachable(origin: Origin) -> bool:
    """Return whether the latest connection attempts succeeded, or none was made yet."""
    return all(
        state.is_reachable and not state.record.is_unreachable for state in origin.cluster.router.states
    )


SHOWN = (
    *("version", "build", "http2_library", "pid", "uptime", "draining"),
    *("clients", "connections", "in_flight"),
)
"""Keys that the status of a sidecar has in common with that of a balancer."""

TOTALS = ("requests", "retried", "queued", "errors")
"""Keys that the status has for each origin, too."""


def sidecar_status(control_plane: ControlPlane, origins: Origins) -> dict[str, Any]:
    """Return the document of /-/status. Durations are in seconds."""
    counts, each = process_counts(control_plane), [origin_status(origin) for origin in origins.all]
    no_origin = {"requests": 0, "errors": counts["errors"]}
    return {
        **{key: counts[key] for key in SHOWN},
        **merged([no_origin, *({key: one[key] for key in TOTALS} for one in each)]),
        "access_log": log_status(control_plane.cluster),
        "reload": reload_status(control_plane),
        "origins": each,
    }


def origin_status(origin: Origin) -> dict[str, Any]:
    """Return one origin: its selectors, counts, and the status of its endpoint."""
    cluster, counts = origin.cluster, process_counts(origin.control_plane)
    return {
        "id": origin.name,
        "url": origin.url,
        "host": origin.host,
        "prefix": origin.prefix,
        **{key: counts[key] for key in (*TOTALS, "abandoned")},
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


class SidecarServer(Server):
    """A `Server` whose requests go to `origins`. `read` returns the current configuration for a reload."""

    def __init__(
        self,
        config: SidecarConfig,
        clock: Clock | None = None,
        read: Callable[[], SidecarConfig] | None = None,
    ) -> None:
        super().__init__(config.settings(), clock, lambda _: (config if read is None else read()).settings())
        self.origins = Origins([])
        self._admin = SidecarAdmin(
            self.control_plane,
            self.reloads,
            self.origins,
            self.control_plane.config.token,
            self.listening.admin,
        )

    def _downstream(self, routes: RouteTable) -> OriginConnection:
        return OriginConnection(self.cluster, self._admin.exchange, self.origins)

    def _commit_clusters(self, config: RuntimeConfig, new: dict[str, ControlPlane]) -> None:
        super()._commit_clusters(config, new)
        assert isinstance(config.settings, SidecarSettings)
        sidecar, planes = config.settings.sidecar, self.control_plane.named
        self.origins.apply(
            [
                Origin(one.name, one.url, sidecar.host_of(one), one.prefix, planes[one.name])
                for one in sidecar.origins
            ],
            sidecar.own_names,
        )


def load_sidecar(path: Path | None, overrides: Mapping[str, Any]) -> SidecarConfig:
    """Read the configuration as `read_sidecar` does. Raises `ConfigError`, also for certificate files."""
    config = read_sidecar(path, overrides)
    settings = config.settings()
    for at, origin in enumerate(config.origins):
        try:
            upstream_tls_of(settings.of_cluster(origin.name))
        except ConfigError as error:
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
