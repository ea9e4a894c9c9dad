"""HTTP/2 connection pool of one endpoint: leases upstream streams instead of connections.

As in `http1/pool.py`, all decisions are synchronous and only connecting is a task. One connection is opened at a
time, and the lease waiters that arrive meanwhile share it. Another one is opened when no connection has room for a
stream. A request with a large head gets all of one, since the worker may end it for that.

No idle timeout is estimated: the worker announces its close (GOAWAY, RFC 9113 § 6.8), and requests that it has not
processed are retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from balancer.errors import ConnectFailed
from balancer.http.h2.limits import ASSUMED_STREAMS, UNLIMITED
from balancer.tls.contexts import HTTP2, ClientTls
from balancer.upstream.connection_counts import US, WORKER, ConnectionInfo
from balancer.upstream.pool import LeaseWaiter, Pool
from balancer.upstream.pool_context import PoolContext
from balancer.upstream.request import UpstreamRequest
from balancer.upstream.stream import MultiplexedConnection, UpstreamStream
from policies.facts import Endpoint

Opener = Callable[["MultiplexedPool", "ClientTls | None"], Awaitable[MultiplexedConnection]]
"""Opens a multiplexed connection. Raises `ConnectFailed`."""


class MultiplexedPool(Pool):
    """HTTP/2 connections to one endpoint. `idle` and `leased` count connections without and with streams."""

    transport = "http2"
    alpn = HTTP2
    is_multiplexed = True
    carries_rpcs = True
    counts_reuse = True

    def __init__(self, endpoint: Endpoint, pools: PoolContext, opener: Opener) -> None:
        super().__init__(endpoint, pools)
        self.stream_limit = ASSUMED_STREAMS  # SETTINGS_MAX_CONCURRENT_STREAMS that the worker sent last
        self.header_list = UNLIMITED  # the same of SETTINGS_MAX_HEADER_LIST_SIZE
        self._opener = opener
        self._connections: list[MultiplexedConnection] = []  # open ones, in order of opening

    @property
    def idle(self) -> int:
        return sum(not connection.leased for connection in self._connections)

    @property
    def has_idle(self) -> bool:
        return any(has_stream_room(connection) for connection in self._connections)

    @property
    def leased(self) -> int:
        return len(self._connections) - self.idle

    @property
    def standing(self) -> int:
        return len(self._connections)

    @property
    def streams(self) -> int:
        return sum(connection.leased for connection in self._connections)

    @property
    def idle_limit(self) -> float:
        return self.pools.settings.pool.idle_timeout

    @property
    def is_idle_limit_learned(self) -> bool:
        return False

    def listed(self, most: int) -> list[ConnectionInfo]:
        return [_snapshot(connection) for connection in self._connections[:most]]

    @property
    def origin(self) -> tuple[str, int]:
        """Host and port of the endpoint."""
        return self.route.host, self.route.port

    # --- leasing

    def lease(self) -> UpstreamRequest | None:
        """Lease a stream on a connection that has room, else None."""
        for connection in self._connections:
            if has_stream_room(connection):
                return self._new_stream(connection)
        return None

    def lease_quiet(self) -> UpstreamRequest | None:
        for connection in self._connections:
            if has_stream_room(connection) and connection.is_quiet():
                return self.lease()
        return None

    def lease_own(self) -> UpstreamRequest | None:
        """Lease all of a connection. Without a descriptor for another one, the request shares one after all."""
        for connection in self._connections:
            if not connection.leased and has_stream_room(connection) and connection.is_quiet():
                connection.life.is_taken = True
                return self._new_stream(connection)
        return self.lease() if self.pools.is_full else None

    def _new_stream(self, connection: MultiplexedConnection) -> UpstreamStream:
        if (connection.leased or connection.life.idle_since) and self.counts_reuse:
            self.counts.reused += 1
        stream, life = UpstreamStream(self, connection), connection.life
        stream.idle_since = life.idle_since
        stream.phases = life.phases
        life.requests += 1
        connection.leased += 1
        return stream

    def wait(self, waiter: LeaseWaiter) -> None:
        self.open(waiter)

    def open(self, waiter: LeaseWaiter, *, is_trial: bool = False) -> None:
        """As in `Pool`, as soon as a connection has room. A broken connection is not in the pool any more, so a retry
        cannot get it again."""
        if not self.has_idle:
            self.counts.cold += not is_trial
            if is_trial and not self.opening:
                self.connector.open(self, None)
            elif not (self.opening or self.connector.may_open):
                self.connector.fail_in_backoff(waiter)
                return
        self._waiters.append(waiter)
        self.serve()

    def give_back(self, stream: UpstreamStream) -> None:
        """Take back a stream that has ended."""
        connection = stream.connection
        connection.leased -= 1
        connection.life.idle_since = self.pools.cached_time
        connection.life.is_taken = False
        if not connection.leased and (self.is_retired or not has_stream_room(connection)):
            connection.retire()
        if self._waiters:
            self.serve()

    def _lease_waited(self) -> UpstreamRequest | None:
        return self.lease_own() if self._waiters[0].needs_own else self.lease()

    def serve(self) -> None:
        """Serve lease waiters, and open a connection for those that are left."""
        if not self._is_serving:
            super().serve()
            self._open_for_waiters()

    def _open_for_waiters(self) -> None:
        wanted = len(self._waiters)
        if self.keeps_alive and wanted:
            wanted = max(1, sum(waiter.needs_own for waiter in self._waiters))
        while self.opening < wanted and self.connector.may_open:
            self.connector.open(self, None)
        while self._waiters and not self.opening:
            self.connector.fail_in_backoff(self._waiters.popleft())

    # --- called by the connector

    async def connect(self, tls: ClientTls | None) -> MultiplexedConnection:
        return await self._opener(self, tls)

    def opening_failed(self, error: ConnectFailed, waiter: LeaseWaiter | None) -> None:
        """Fail all lease waiters, which shared one connect; without reuse, where each has its own, only the first."""
        for _ in range(len(self._waiters) if self.keeps_alive else 1):
            if self._waiters:  # waiters added meanwhile wait for the next connect
                self._waiters.popleft().connect_failed(error)

    def connection_opened(
        self, connection: MultiplexedConnection, waiter: LeaseWaiter | None, elapsed: float
    ) -> None:
        """Serve the lease waiters with streams of an opened connection."""
        self._connections.append(connection)
        self._set_lifetime(connection, elapsed)
        if self.is_retired and not self._waiters:
            connection.retire()
        elif connection.room <= 0:  # closed since the handshake, or its SETTINGS have come
            reason = "closed the connection at once" if self.stream_limit else "allows no request at a time"
            error = ConnectFailed(f"the worker {reason}")
            self.connector.record_failed(error)
            self.opening_failed(error, None)
        else:
            self.serve()
            if not connection.leased and not connection.life.idle_since:
                connection.life.idle_since = self.pools.cached_time

    def _set_lifetime(self, connection: MultiplexedConnection, elapsed: float) -> None:
        """Set the connection's maximum age and number of streams, with jitter."""
        limits, rng, life = self.pools.settings.pool, self.pools.rng, connection.life
        self.connector.record_opened(life.phases, elapsed)
        life.opened_at = self.pools.cached_time
        life.retire_at = life.opened_at + limits.lifetime(rng)
        life.granted = limits.grant(rng) if self.keeps_alive else 1

    def connection_closed(self, connection: MultiplexedConnection, by: str = US) -> None:
        """Remove a closed connection. `by`: which side closed it."""
        if connection in self._connections:
            self._connections.remove(connection)
            self.pools.count_closed()
            self._count_lost(connection, by)
        if self._waiters:
            self.serve()

    def _count_lost(self, connection: MultiplexedConnection, by: str) -> None:
        self.counts.count_closed(by)
        if by == WORKER and not connection.leased:
            self.counts.count_lost(max(0.0, self.pools.now() - connection.life.idle_since))

    # --- lifetime

    def prune(self, now: float) -> None:
        """Retire connections past their maximum age or idle time, and let the others age their streams. With `warm`,
        the newest idle connection is kept and a missing one is opened."""
        limits = self.pools.settings.pool
        for connection in list(self._connections):
            if now > connection.life.retire_at or self._is_surplus(connection, now):
                connection.retire()
            else:
                connection.prune(now, limits)
        if limits.preconnect and not (self._connections or self.opening) and self.pools.room != 0:
            self.open_ahead()

    def _is_surplus(self, connection: MultiplexedConnection, now: float) -> bool:
        limits = self.pools.settings.pool
        if connection.leased or now - connection.life.idle_since < limits.idle_timeout:
            return False
        return not limits.preconnect or connection is not self._connections[-1]

    def close_oldest(self) -> None:
        idle = [connection for connection in self._connections if not connection.leased]
        if idle:
            min(idle, key=lambda connection: connection.life.idle_since).close()

    def close_idle(self) -> None:
        for connection in list(self._connections):
            if not connection.leased:
                connection.close()

    def keep_alive(self, is_wanted: bool) -> None:
        super().keep_alive(is_wanted)
        if not is_wanted:
            self._retire_connections()

    def retire(self) -> None:
        super().retire()
        self._retire_connections()

    def _retire_connections(self) -> None:
        for connection in list(self._connections):
            connection.retire()

    def close(self) -> list[asyncio.Task[None]]:
        tasks = super().close()
        for connection in list(self._connections):
            connection.close()
        return tasks


def has_stream_room(connection: MultiplexedConnection) -> bool:
    """Whether the connection may take one more stream."""
    life = connection.life
    return connection.room > 0 and life.requests < life.granted and not life.is_taken


def _snapshot(connection: MultiplexedConnection) -> ConnectionInfo:
    life, leased = connection.life, connection.leased
    idle_since = None if leased else life.idle_since
    return ConnectionInfo(life.name, life.opened_at, idle_since, life.requests, leased, life.phases)
