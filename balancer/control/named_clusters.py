"""The named clusters of one process: a control plane for each, behind the connections of the default one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from balancer.authorization.authorizer import Authorizer
from balancer.cluster.affinity import client_address
from balancer.cluster.runtime_config import RuntimeConfig
from balancer.config.problems import in_cluster
from balancer.config.schema.routes import DEFAULT, RouteConfig
from balancer.control.control_plane import ControlPlane
from balancer.exchange.field_edits import edits_of
from balancer.http.h1.request_head import KeyOf
from balancer.routes.route import Route
from balancer.routes.table import ListenerRoutes, RouteTable, own_route
from balancer.upstream.pool_context import PoolContext

Build = Callable[[str, "RuntimeConfig"], "ControlPlane"]
"""Builds the control plane of a named cluster."""


class NamedClusters:
    """Adds and removes the named clusters behind `front`, the control plane of the default cluster, which reloads
    those that stay, and applies the `routes` that lead to them, with their rate limits and mirrors.

    A removed cluster keeps its endpoints for the requests that it has, and is closed when they have ended.
    """

    def __init__(self, front: ControlPlane, build: Build) -> None:
        self.routes = RouteTable()
        self.listener_routes: dict[str, ListenerRoutes] = {}
        self._front = front
        self._build = build
        self._leaving: list[ControlPlane] = []
        self._closing: set[asyncio.Task[None]] = set()

    def routes_of(self, listener: str) -> RouteTable:
        """Return the routes of the requests that come to a listener, "" for `listen`, from the next `commit` on."""
        if not listener:
            return self.routes
        return self.listener_routes.setdefault(listener, ListenerRoutes(self.routes))

    @property
    def every(self) -> list[ControlPlane]:
        """The control planes of all named clusters, and of removed ones with requests in flight."""
        return [*self._front.named.values(), *self._leaving]

    async def prepare(self, config: RuntimeConfig) -> dict[str, ControlPlane]:
        """Return the control planes of new clusters, with their endpoints looked up, not in force yet.

        Raises `ConfigError`, `PoliciesError` or `LogFailed`.
        """
        new: dict[str, ControlPlane] = {}
        try:
            for name, one in config.named.items():
                if name not in self._front.named:
                    with in_cluster(name):
                        new[name] = plane = self._build(name, one)
                        plane.read_sources()
            async with asyncio.TaskGroup() as lookups:
                for plane in new.values():
                    lookups.create_task(plane.start())
        except BaseException:
            await self.discard(new)
            raise
        return new

    async def discard(self, new: dict[str, ControlPlane]) -> None:
        """Close what `prepare` has returned, for a configuration that is not applied."""
        for plane in new.values():
            await _close(plane)

    def commit(self, config: RuntimeConfig, new: dict[str, ControlPlane]) -> None:
        """Apply the routes of a configuration, add its `new` clusters, as `prepare` has returned them, and remove those
        that it does not have.

        Call it after `ControlPlane.reload`, which applies the configuration of the clusters that stay.
        """
        front = self._front
        before = front.named
        front.named = {name: before[name] if name in before else new[name] for name in config.named}
        for removed in (plane for name, plane in before.items() if name not in config.named):
            removed.discovery.forget_sources()
            removed.recording.stop()
            self._leaving.append(removed)
        for plane in front.named.values():
            plane.cluster.count_apart(config.settings.limits.client_requests)
        self._apply_routes(config)
        if front.named or self._leaving:
            self.share()

    def _apply_routes(self, config: RuntimeConfig) -> None:
        front, settings, limits = self._front, config.settings, self._front.rate_limits
        planes = {DEFAULT: front} | front.named
        clusters = {name: plane.cluster for name, plane in planes.items()}
        front.mirrors.apply(settings.routes, clusters, settings.seed)
        front.splits.apply(settings.routes, clusters, settings.seed)
        limits.apply(settings.rate_limits)
        front.cluster.limiter = limits.limiter(None, _key_of(config))

        def route_of(route: RouteConfig, label: str = "") -> Route:
            keyed = planes[route.clusters[0]].config if route.clusters else config
            limiter = limits.limiter(route.rate_limit, _key_of(keyed))
            mirror = None if route.mirror is None else front.mirrors.by_route.get(route.conditions)
            asked = None if route.auth is None else Authorizer(route.auth, clusters[route.auth.cluster])
            cluster = clusters[route.cluster] if route.cluster is not None else None
            split = front.splits.by_route.get(route.conditions) if route.split else None
            edits = edits_of(settings.headers, route)
            return Route(route, cluster, limiter, mirror, asked, split, edits, label)

        self.routes.replace(
            [(route, route_of(route)) for route in settings.routes],
            has_default=bool(settings.endpoints) or settings.discovery.is_configured,
            normalise=settings.normalise,
            edits=edits_of(settings.headers),
            trusts=front.cluster.trusts,
        )
        front.cluster.process.error_bodies = config.error_bodies
        for name, table in self.listener_routes.items():
            own = own_route(settings.listeners.get(name))
            table.apply([] if own is None else [(own, route_of(own, f"listener {name}"))])

    def share(self) -> None:
        """Share the access log and the limit of descriptors."""
        group: list[PoolContext] = [self._front.cluster.pools, *(one.cluster.pools for one in self.every)]
        for one in self.every:
            if one.access_log is not self._front.access_log:
                one.apply_access_log()
        for pools in group:
            pools.group = group

    def sweep(self, now: float) -> None:
        """Run periodic work, and drop removed clusters whose requests have ended."""
        self._front.mirrors.sweep(now)
        self._front.splits.sweep(now)
        for one in self.every:
            one.sweep(now)
        ended = [one for one in self._leaving if one.is_idle]
        if ended:
            self._leaving = [one for one in self._leaving if one not in ended]
            for one in ended:
                task = asyncio.get_running_loop().create_task(_close(one))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            self.share()

    async def stop(self) -> None:
        """Abandon all copies, and stop all named clusters."""
        self._front.mirrors.stop()
        for one in self.every:
            await one.stop()
        if self._closing:
            await asyncio.wait(self._closing)


async def _close(plane: ControlPlane) -> None:
    """Stop a cluster that is not used any more, and free its rows in the memory that processes share."""
    plane.replace_endpoints([])
    await plane.stop()
    plane.release()


def _key_of(config: RuntimeConfig) -> KeyOf | None:
    """Return the request key of a cluster that rate limits may use, None if they count by client: a sticky cookie names
    an endpoint, and a client can choose the address that is its key."""
    is_cookie = config.settings.sticky.cookie is not None
    return None if is_cookie or config.key_of is client_address else config.key_of
