"""The connections to all endpoints: a pool for each, and how many there may be together.

Rule of this file: nothing here opens a connection; it says who may, and who makes way. A pool stays as long as its
endpoint's id, address and transport do, and with it all that was learned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from time import monotonic
from typing import Protocol

from balancer.tls.contexts import UpstreamTls
from balancer.upstream.pool import NATIVE, Pool
from balancer.upstream.pool_limits import PoolLimits
from balancer.upstream.route import Routes
from policies.routing.facts import Endpoint


class Client(Protocol):
    """What a transport has once for all endpoints."""

    async def close(self) -> None: ...


class Pools:
    """All pools by endpoint id, and how many connections they may hold together (`limit`; None: no limit). `now` is the
    clock; `cached_time` was its time at the last sweep. `transports` are by endpoint id where it is not the native one,
    and endpoints whose ids are in `without_reuse` get a new connection for each request."""

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
        self.clients: dict[str, Client] = {}  # of transports that have one for all endpoints
        self.open_connections = 0
        self.by_id: dict[str, Pool] = {}
        self.without_reuse: frozenset[str] = frozenset()
        self._retired: dict[Pool, None] = {}  # that have connections still

    def go_by(self, limits: PoolLimits) -> None:
        """Other limits than before, for connections opened from now on, and for how long those that stand are idle."""
        self.limits = limits
        for pool in self.by_id.values():
            pool.go_by(limits)

    def replace(self, endpoints: list[Endpoint]) -> None:
        """Keep the pools of endpoints that stay as they are, retire the others."""
        kept = {endpoint.id: self._kept(endpoint) or self._new(endpoint) for endpoint in endpoints}
        for id_, pool in kept.items():
            if id_ in self.by_id:  # under another address: what the operator has said of it still holds
                pool.route.is_down = self.by_id[id_].route.is_down
        for pool in self.by_id.values():
            if kept.get(pool.endpoint.id) is not pool:
                self._retire(pool)
        self.by_id = kept
        for pool in kept.values():
            if pool.keeps_alive is (pool.endpoint.id in self.without_reuse):
                pool.keep_alive(not pool.keeps_alive)
        self.routes.follow(pool.route for pool in kept.values())

    def put(self, endpoint: Endpoint) -> None:
        """Add the pool of one endpoint, or keep the one that it has; where that does not fit any more, retire it."""
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
        """Retire the pool of one endpoint."""
        self._retire(self.by_id.pop(endpoint_id))
        self.routes.drop(endpoint_id)

    def _retire(self, pool: Pool) -> None:
        pool.retire()
        self._retired[pool] = None

    def _kept(self, endpoint: Endpoint) -> Pool | None:
        pool = self.by_id.get(endpoint.id)
        if pool is None or pool.endpoint.address != endpoint.address:
            return None
        return pool if pool.transport == self.transports.get(endpoint.id, NATIVE) else None

    def _new(self, endpoint: Endpoint) -> Pool:
        transport = self.transports.get(endpoint.id, NATIVE)
        if transport == NATIVE:
            return Pool(endpoint, self)
        # Here: it builds on this file, and loads more than most need.
        from balancer.upstream.transports import pool_of

        return pool_of(endpoint, self, transport)

    def prune(self, now: float) -> None:
        """Age every pool. Ages are of seconds, so the time of the last call serves until the next one."""
        self.cached_time = now
        for pool in self.by_id.values():
            pool.prune(now)
        for pool in [pool for pool in self._retired if not (pool.opening or pool.standing)]:
            del self._retired[pool]
        self.routes.sweep(now, self.room)

    @property
    def room(self) -> int | None:
        """How many more connections there may be; None: any number."""
        return None if self.limit is None else max(0, self.limit - self._in_use)

    @property
    def _in_use(self) -> int:
        """Descriptors: those of the pools, and what the watch has open."""
        return self.open_connections + self.routes.watch.under_way

    def make_room(self) -> None:
        """At the limit an idle connection elsewhere makes way for one that is needed now."""
        if self.limit is None or self._in_use < self.limit:
            return
        fullest = max(self.by_id.values(), key=lambda pool: pool.idle)
        if fullest.idle:
            fullest.close_oldest()

    async def close(self) -> None:
        """Close everything and wait until nothing is being opened."""
        tasks = [task for pool in [*self.by_id.values(), *self._retired] for task in pool.close()]
        await self.routes.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self.clients.values():
            await client.close()
