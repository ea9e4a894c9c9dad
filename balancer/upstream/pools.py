"""Connection pools of all endpoints.

A pool is kept, with all that it has learned, as long as its endpoint's id, address and transport stay the same. Nothing
here opens a connection.
"""

from __future__ import annotations

import asyncio

from balancer.config.loading import Settings
from balancer.tls.contexts import UpstreamTls
from balancer.upstream.http1.pool import ConnectionPool
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.library.pool import LibraryPool
from balancer.upstream.pool import NATIVE, Pool
from balancer.upstream.pool_context import PoolContext
from policies.facts import Endpoint


class Pools(PoolContext):
    """Connection pools by endpoint id."""

    def apply(self, settings: Settings, tls: UpstreamTls) -> None:
        """Apply changed settings. Maximum age and requests apply to new connections, idle limits also to open ones."""
        self.settings, self.tls = settings, tls
        self.routes.apply(settings.names, settings.route_watch)
        for pool in self.by_id.values():
            pool.apply()

    def replace(self, endpoints: list[Endpoint]) -> None:
        """Replace the set of endpoints: keep the pools of unchanged endpoints and retire the others."""
        for endpoint in endpoints:
            self.put(endpoint)
        for gone in self.by_id.keys() - {endpoint.id for endpoint in endpoints}:
            self.drop(gone)  # last: a name that is still in use stays cached

    def put(self, endpoint: Endpoint) -> None:
        """Add an endpoint's pool or keep a matching one; a pool with another address or transport is replaced and
        retired."""
        before = self.by_id.get(endpoint.id)
        has_moved = before is None or before.endpoint.address != endpoint.address
        transport = self._transport_of(endpoint.id)
        if before is None or has_moved or before.transport != transport:
            pool = self.by_id[endpoint.id] = self._new(endpoint, transport)
            if before is not None:
                pool.route.is_down = before.route.is_down
                self._retire(before)
            self.routes.put(pool.route)
        else:
            pool = before
            pool.endpoint = pool.route.endpoint = endpoint
        config = self.configs.get(endpoint.id)
        if pool.keeps_alive is not (config is None or config.keep_alive):
            pool.keep_alive(not pool.keeps_alive)

    def drop(self, endpoint_id: str) -> None:
        """Retire the pool of a removed endpoint."""
        self._retire(self.by_id.pop(endpoint_id))
        self.routes.drop(endpoint_id)

    def aside(self, endpoint: Endpoint, transport: str) -> Pool:
        """Return a pool for one request to another port of an endpoint; it keeps no connection."""
        pool = self._new(endpoint, transport)
        self._retire(pool)
        return pool

    def _retire(self, pool: Pool) -> None:
        pool.retire()
        self._retired[pool] = None

    def _transport_of(self, endpoint_id: str) -> str:
        config = self.configs.get(endpoint_id)
        return NATIVE if config is None else config.transport

    def _new(self, endpoint: Endpoint, transport: str) -> Pool:
        if transport == NATIVE:
            return ConnectionPool(endpoint, self)
        # Imported here because most configurations do not need them.
        if transport == "http2":
            from balancer.upstream.http2.connection import open_session

            return MultiplexedPool(endpoint, self, open_session)
        if transport == "curl":
            from balancer.upstream.library.curl import open_client
        else:
            from balancer.upstream.library.aiohttp_client import open_client
        return LibraryPool(endpoint, self, open_client, transport)

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
