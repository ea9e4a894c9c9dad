"""The sidecar as a server: one listening socket, a front, and a cluster for each origin.

What is common to all clients belongs to the front, a cluster without endpoints; the exchange belongs to the origin's
cluster. One sweep serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from balancer.cluster.cluster import Cluster
from balancer.cluster.discovery.discovery import RemoteSource
from balancer.cluster.runtime_config import RuntimeConfig, runtime_config_of
from balancer.config.loading import Settings
from balancer.config.schema.sidecar import OriginConfig, SidecarConfig
from balancer.control.control_plane import ControlPlane
from balancer.control.reload import Prepared
from balancer.process.server import Server, build_cluster
from balancer.routes.table import RouteTable
from balancer.tools.sidecar.admin import SidecarAdmin
from balancer.tools.sidecar.downstream import OriginConnection
from balancer.tools.sidecar.origins import Origin, Origins
from policies.clock import Clock
from policies.loading.source import Source

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
