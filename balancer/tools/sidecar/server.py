"""`balancer sidecar`: a server with one listening socket, a front, and a cluster for each origin.

What is common to all clients belongs to the front, a cluster without endpoints; the exchange belongs to the origin's
cluster. One sweep serves all.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from balancer.cluster.cluster import Cluster
from balancer.cluster.discovery.discovery import RemoteSource
from balancer.cluster.runtime_config import RuntimeConfig, runtime_config_of
from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.config.schema.sidecar import LISTEN, OriginConfig, SidecarConfig, origins_from
from balancer.control.admin.application import AdminApplication
from balancer.control.admin.health import DRAINING, SERVING
from balancer.control.admin.socket_path import AdminSockets
from balancer.control.control_plane import ControlPlane
from balancer.control.reload import Prepared, Reloads
from balancer.process.lifecycle import attend, say
from balancer.process.server import Server, build_cluster, new_event_loop
from balancer.routes.table import RouteTable
from balancer.tools.sidecar.configuration import load_sidecar
from balancer.tools.sidecar.downstream import OriginConnection
from balancer.tools.sidecar.origins import Origin, Origins
from policies.clock import Clock
from policies.loading.source import Source

if TYPE_CHECKING:
    from balancer.control.admin.handlers import AdminHandlers


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
        from balancer.tools.sidecar.handlers import SidecarHandlers

        return SidecarHandlers(self, self._control_plane, self._reloads, self._origins)

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self.readiness == SERVING

    @property
    def readiness(self) -> str:
        """Readiness in words."""
        return DRAINING if self._cluster.process.is_draining else SERVING


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
