"""Connection pools of all endpoints, and the limit on their total number of connections.

A pool is kept, with all that it has learned, as long as its endpoint's id, address and transport stay the same. Nothing
here opens a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from time import monotonic
from typing import Protocol

from balancer.config.schema.pool_limits import PoolLimits
from balancer.tls.contexts import UpstreamTls
from balancer.upstream.dial.target import Routes
from balancer.upstream.http1.pool import ConnectionPool
from balancer.upstream.pool import NATIVE, Pool
from policies.facts import Endpoint

MOST_CHECKS = 16
"""Connections kept for health checks and probes: they are short, and spread over their interval."""


class Client(Protocol):
    """Client of a transport that is shared by all endpoints."""

    async def close(self) -> None: ...


class Pools:
    """Connection pools by endpoint id.

    `limit`: maximum number of connections of the `group`, which are the pools of all clusters that share it; None:
    unlimited. `now`: clock in seconds; `cached_time`: cached time, that of the last sweep. `transports`: transport by
    endpoint id, where it is not the native one. `without_reuse`: ids of endpoints that get a new connection for each
    request.
    """

    def __init__(
        self,
        cached_time: float,
        limits: PoolLimits,
        limit: int | None = None,
        tls: UpstreamTls | None = None,
        *,
        routes: Routes | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.cached_time = cached_time
        self.now = now
        self.rng = Random(limits.seed)
        self.limits = limits
        self.limit = limit
        self.tls = tls or UpstreamTls()
        self.routes = routes or Routes()
        self.transports: dict[str, str] = {}
        self.clients: dict[str, Client] = {}  # by transport, where all endpoints share one
        self.open_connections = 0
        self.is_full = False  # a connection for one more request would take a descriptor that is not there
        self.on_room: Callable[[], None] | None = None  # called when one was closed while `is_short`
        self.is_short = False  # a request waits for a descriptor
        self.by_id: dict[str, Pool] = {}
        self.without_reuse: frozenset[str] = frozenset()
        self.group: list[Pools] = [self]
        self._retired: dict[Pool, None] = {}  # with connections still open

    def apply(self, limits: PoolLimits) -> None:
        """Apply changed limits. Maximum age and requests apply to new connections, idle limits also to open ones."""
        self.limits = limits
        for pool in self.by_id.values():
            pool.apply(limits)

    def replace(self, endpoints: list[Endpoint]) -> None:
        """Replace the set of endpoints: keep the pools of unchanged endpoints and retire the others."""
        kept = {endpoint.id: self._kept(endpoint) or self._new(endpoint) for endpoint in endpoints}
        for id_, pool in kept.items():
            if id_ in self.by_id:  # the admin state survives a change of address
                pool.route.is_down = self.by_id[id_].route.is_down
        for pool in self.by_id.values():
            if kept.get(pool.endpoint.id) is not pool:
                self._retire(pool)
        self.by_id = kept
        for pool in kept.values():
            if pool.keeps_alive is (pool.endpoint.id in self.without_reuse):
                pool.keep_alive(not pool.keeps_alive)
        self.routes.update(pool.route for pool in kept.values())

    def put(self, endpoint: Endpoint) -> None:
        """Add an endpoint's pool or keep a matching one; a pool with another address or transport is replaced and
        retired."""
        before, pool = self.by_id.get(endpoint.id), self._kept(endpoint)
        if pool is None:
            pool = self.by_id[endpoint.id] = self._new(endpoint)
            if before is not None:
                pool.route.is_down = before.route.is_down
                self._retire(before)
            self.routes.put(pool.route)
        if pool.keeps_alive is (endpoint.id in self.without_reuse):
            pool.keep_alive(not pool.keeps_alive)

    def drop(self, endpoint_id: str) -> None:
        """Retire the pool of a removed endpoint."""
        self._retire(self.by_id.pop(endpoint_id))
        self.routes.drop(endpoint_id)

    def _retire(self, pool: Pool) -> None:
        pool.retire()
        self._retired[pool] = None

    def _kept(self, endpoint: Endpoint) -> Pool | None:
        pool = self.by_id.get(endpoint.id)
        if pool is None or pool.endpoint.address != endpoint.address:
            return None
        if pool.transport != self.transports.get(endpoint.id, NATIVE):
            return None
        pool.endpoint = pool.route.endpoint = endpoint
        return pool

    def _new(self, endpoint: Endpoint) -> Pool:
        transport = self.transports.get(endpoint.id, NATIVE)
        if transport == NATIVE:
            return ConnectionPool(endpoint, self)
        # Imported here because it imports this module, and most configurations do not need it.
        from balancer.upstream.transports import pool_of

        return pool_of(endpoint, self, transport)

    def prune(self, now: float) -> None:
        """Sweep: age all pools and update the cached time."""
        self.cached_time = now
        for pool in self.by_id.values():
            pool.prune(now)
        for pool in [pool for pool in self._retired if not (pool.opening or pool.standing)]:
            del self._retired[pool]
        self.routes.sweep(now, self.room)
        if self.is_full:
            self._note_full()  # watches of routes, which no connection reports, may have ended

    @property
    def room(self) -> int | None:
        """Number of connections that may still be opened, but for checks; None: unlimited."""
        return None if self.limit is None else max(0, self.limit - kept_for_checks(self.limit) - self._in_use)

    def count_opened(self) -> None:
        """Count a connection that is being opened."""
        self.open_connections += 1
        self._note_full()

    def count_closed(self) -> None:
        """Count a connection that was closed, and report it to those whose requests wait for a descriptor."""
        self.open_connections -= 1
        if self.limit is None:
            return
        self._note_full()
        for pools in self.group:
            if pools.is_short and pools.on_room is not None:
                pools.on_room()

    def _note_full(self) -> None:
        is_full = self.room == 0
        if is_full is not self.is_full:
            for pools in self.group:
                pools.is_full = is_full

    def may_lease(self, pool: Pool) -> bool:
        """Return whether a request may take a connection of `pool` although `is_full`: it shares one, or an idle one
        can be closed for it."""
        is_shared = pool.is_multiplexed and (pool.has_idle or pool.opening > 0)
        return is_shared or any(each.idle for pools in self.group for each in pools.by_id.values())

    def leaves_room(self, number: int) -> bool:
        """Return whether `number` more connections could be opened, for which idle ones may be closed."""
        room = self.room
        return room is None or room >= number or self.free >= number

    @property
    def free(self) -> int:
        """Number of requests that would get a connection now, where there is a limit."""
        return (self.room or 0) + sum(pool.idle for pools in self.group for pool in pools.by_id.values())

    @property
    def _in_use(self) -> int:
        """Number of descriptors in use, by the pools and the route watches of the group."""
        return sum(pools.open_connections + pools.routes.watch.under_way for pools in self.group)

    def make_room(self) -> None:
        """At the limit, close the oldest idle connection of the pool that has most of them."""
        if self.room != 0:
            return
        every = (pool for pools in self.group for pool in pools.by_id.values())
        fullest = max(every, key=lambda pool: pool.idle)
        if fullest.idle:
            fullest.close_oldest()

    async def close(self) -> None:
        """Close all pools, routes and clients, and wait for pending connects to end."""
        tasks = [task for pool in [*self.by_id.values(), *self._retired] for task in pool.close()]
        await self.routes.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self.clients.values():
            await client.close()

    def release(self) -> None:
        """Let go of what is shared with other clusters, of TLS contexts, of 860 KiB each, and of this object, when
        nothing is open any more."""
        self.group = []
        self.on_room = None
        self.tls = UpstreamTls()
        self.clients.clear()
        self._retired.clear()


def kept_for_checks(limit: int) -> int:
    """Return how many of `limit` connections no request gets: health checks and probes always have theirs."""
    return min(MOST_CHECKS, limit // 8)
