"""A worker's connections: lease, give back, age, count.

Rule of this file: every decision is synchronous; only opening a connection is a task. A connection is idle,
leased or gone, and it leaves by one door, `connection_closed`, so the counts always add up. The newest idle
connection is leased first: it is the least likely to have been closed by the worker (RFC 9112 § 9.3.1), and
the oldest are left to age out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from balancer.connections.route import Route, Routes
from balancer.connections.upstream import Upstream, connect
from balancer.errors import ConnectFailed
from balancer.tls.contexts import ClientTls, UpstreamTls
from policies.facts import Endpoint

NATIVE: Final = "native"
"""The transport of this file: one request at a time on a connection, in HTTP/1.1."""


class Lessee(Protocol):
    """Who asked for a connection and had to wait."""

    def connected(self, upstream: Upstream) -> None: ...
    def connect_failed(self, error: ConnectFailed) -> None: ...


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Durations in seconds. `idle` stays below what the worker keeps, or requests meet its closing."""

    idle: float = 4.0
    max_age: float = 300.0
    connect_timeout: float = 2.0


@dataclass(slots=True)
class PoolCounts:
    """Totals since the start; `lost_idle` were closed by the worker while they served nobody."""

    opened: int = 0
    reused: int = 0
    failed: int = 0
    closed: int = 0
    lost_idle: int = 0


class Pool:
    """The connections to one endpoint."""

    def __init__(self, endpoint: Endpoint, pools: Pools) -> None:
        self.endpoint = endpoint
        self.route = Route(endpoint, pools.routes)
        self.transport = NATIVE
        self.counts = PoolCounts()
        self.opening = 0
        self.is_retired = False
        self.last_fault: str | None = None  # why a connection could not be opened, the last time
        self._pools = pools
        self._connections = 0  # that stand, idle or leased
        self._idle: dict[Upstream, None] = {}  # in order of giving back: the newest is last
        self._lessees: deque[Lessee] = deque()
        self._is_serving = False
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order of beginning

    def __repr__(self) -> str:
        return f"<Pool {self.endpoint.id} idle={self.idle} leased={self.leased} opening={self.opening}>"

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    @property
    def leased(self) -> int:
        """Connections that serve a request."""
        return self._connections - len(self._idle)

    def lease(self) -> Upstream | None:
        """The newest idle connection, if there is one."""
        if not self._idle:
            return None
        self.counts.reused += 1
        return self._idle.popitem()[0]

    def lease_quiet(self) -> Upstream | None:
        """Like `lease`, for requests that cannot be repeated: asks the kernel whether a close has arrived."""
        while (upstream := self.lease()) is not None:
            if upstream.is_quiet():
                return upstream
            upstream.close()
        return None

    def wait(self, lessee: Lessee) -> None:
        """Open a connection; the lessee gets it, or one that is given back sooner."""
        self._lessees.append(lessee)
        self._start_opening(None)

    def open(self, lessee: Lessee) -> None:
        """Open a connection for this lessee alone: a second attempt must not meet a second stale one."""
        self._start_opening(lessee)

    def give_back(self, upstream: Upstream) -> None:
        """The exchange is done with it: keep it if it can serve again."""
        now = self._pools.coarse_now
        if (
            not upstream.is_reusable
            or self.is_retired
            or now - upstream.opened_at > self._pools.limits.max_age
        ):
            upstream.close()
            return
        upstream.idle_since = now
        self._idle[upstream] = None
        if self._lessees and not self._is_serving:
            self._serve_lessees()

    def _serve_lessees(self) -> None:
        """One after the other: who has left meanwhile gives it back at once, and a thousand of them would nest."""
        self._is_serving = True
        try:
            while self._lessees and self._idle:
                self.counts.reused += 1
                self._lessees.popleft().connected(self._idle.popitem()[0])
        finally:
            self._is_serving = False

    def connection_closed(self, upstream: Upstream) -> None:
        """ConnectionOwner: it is gone, whoever had it."""
        if not upstream.is_counted:  # it was never ours: it ended, or its time did, while it was being opened
            return
        self.counts.closed += 1
        if upstream in self._idle:
            del self._idle[upstream]
            self.counts.lost_idle += 1
        self._connections -= 1
        self._pools.open_connections -= 1

    def prune(self, now: float) -> None:
        """Close what has been idle too long, oldest first."""
        while self._idle:
            oldest = next(iter(self._idle))
            if now - oldest.idle_since < self._pools.limits.idle:
                return
            self.close_oldest()

    def close_oldest(self) -> None:
        """Give up the idle connection that has waited longest."""
        upstream = next(iter(self._idle))
        del self._idle[upstream]
        upstream.close()

    def close_idle(self) -> None:
        """Keep nothing that nobody uses."""
        while self._idle:
            self.close_oldest()

    def retire(self) -> None:
        """The endpoint is gone: keep nothing idle, take nothing back."""
        self.is_retired = True
        self.close_idle()

    def close(self) -> list[asyncio.Task[None]]:
        """Retire, and cancel what is being opened; returns the tasks to wait for."""
        self.retire()
        self._lessees.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    def _start_opening(self, lessee: Lessee | None) -> None:
        # Now: when the task begins the endpoint may have been removed, and with it how it is met.
        tls = self._pools.tls.of(self.endpoint)
        self._pools.make_room()
        self.opening += 1
        self._pools.open_connections += 1
        task = asyncio.get_running_loop().create_task(self._open(lessee, tls))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _open(self, lessee: Lessee | None, tls: ClientTls | None) -> None:
        try:
            route, timeout = self.route, self._pools.limits.connect_timeout
            upstream = await connect(self, route.host, route.port, timeout, tls, route)
        except ConnectFailed as error:
            self._opening_failed(error, lessee)
        except BaseException:
            self._stop_opening()
            raise
        else:
            self._opened(upstream, lessee)

    def _stop_opening(self) -> None:
        self.opening -= 1
        self._pools.open_connections -= 1

    def _opening_failed(self, error: ConnectFailed, lessee: Lessee | None) -> None:
        self._stop_opening()
        self.counts.failed += 1
        self.last_fault = error.inside
        if lessee is None and self._lessees:
            lessee = self._lessees.popleft()
        if lessee is not None:
            lessee.connect_failed(error)

    def _opened(self, upstream: Upstream, lessee: Lessee | None) -> None:
        self.opening -= 1
        self.counts.opened += 1
        self._connections += 1
        upstream.is_counted = True
        upstream.opened_at = self._pools.coarse_now
        if upstream.is_closed:
            self.connection_closed(upstream)
        if lessee is None and self._lessees:
            lessee = self._lessees.popleft()
        if lessee is None:
            self.give_back(upstream)
        elif upstream.is_closed:  # between the handshake and now
            lessee.connect_failed(ConnectFailed("the worker closed the connection at once"))
        else:
            lessee.connected(upstream)


class Client(Protocol):
    """What a transport has once for all endpoints."""

    async def close(self) -> None: ...


class Pools:
    """All pools by endpoint id, and how many connections they may hold together (`limit`; None: no limit)."""

    def __init__(
        self,
        now: float,
        limits: PoolLimits,
        limit: int | None = None,
        tls: UpstreamTls | None = None,
        routes: Routes | None = None,
    ) -> None:
        self.coarse_now = now
        self.limits = limits
        self.limit = limit
        self.tls = tls or UpstreamTls()
        self.routes = routes or Routes()
        self.transports: dict[str, str] = {}  # by endpoint id, where it is not the native one
        self.clients: dict[str, Client] = {}  # of transports that have one for all endpoints
        self.open_connections = 0
        self.by_id: dict[str, Pool] = {}

    def replace(self, endpoints: list[Endpoint]) -> None:
        """Keep the pools of endpoints that stay as they are, retire the others."""
        kept: dict[str, Pool] = {}
        for endpoint in endpoints:
            pool = self.by_id.get(endpoint.id)
            transport = self.transports.get(endpoint.id, NATIVE)
            is_same = (
                pool is not None and pool.endpoint.address == endpoint.address and pool.transport == transport
            )
            kept[endpoint.id] = pool if pool is not None and is_same else self._new(endpoint, transport)
        for pool in self.by_id.values():
            if kept.get(pool.endpoint.id) is not pool:
                pool.retire()
        self.by_id = kept
        self.routes.follow(pool.route for pool in kept.values())

    def _new(self, endpoint: Endpoint, transport: str) -> Pool:
        if transport == NATIVE:
            return Pool(endpoint, self)
        from balancer.connections.transports import (
            pool_of,
        )  # it builds on this file, and loads more than most need

        return pool_of(endpoint, self, transport)

    def prune(self, now: float) -> None:
        """Age every pool. Ages are of seconds, so the time of the last call serves until the next one."""
        self.coarse_now = now
        for pool in self.by_id.values():
            pool.prune(now)
        self.routes.sweep(now)

    def make_room(self) -> None:
        """At the limit an idle connection elsewhere makes way for one that is needed now."""
        if self.limit is None or self.open_connections < self.limit:
            return
        fullest = max(self.by_id.values(), key=lambda pool: pool.idle)
        if fullest.idle:
            fullest.close_oldest()

    async def close(self) -> None:
        """Close everything and wait until nothing is being opened."""
        tasks = [task for pool in self.by_id.values() for task in pool.close()]
        await self.routes.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self.clients.values():
            await client.close()
