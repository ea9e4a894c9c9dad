"""HTTP/1.1 connection pool of one endpoint: leases connections, takes them back, ages and counts them.

All decisions are synchronous; only connecting is a task. A connection is idle, leased or closed, and leaves the pool
only through `connection_closed`, so that the counts add up.

The newest idle connection is leased first, because the worker is least likely to have closed it (RFC 9112 § 9.3.1); the
oldest age out. A connection given back recently is leased without reading the clock. The sweep moves those that stay
idle for `MIN_IDLE_AGE` to `IdleConnections`, which checks their idle time.
"""

from __future__ import annotations

from itertools import islice

from balancer.errors import ConnectFailed
from balancer.tls.contexts import ClientTls
from balancer.upstream.connection_counts import WORKER, ConnectionInfo, local_address
from balancer.upstream.dial.dial import dial
from balancer.upstream.http1.connection import UpstreamConnection
from balancer.upstream.http1.idle_connections import IdleConnections
from balancer.upstream.http1.idle_timeout import MIN_IDLE_AGE, IdleTimeout
from balancer.upstream.http1.preconnect import Preconnect
from balancer.upstream.pool import LeaseWaiter, Pool
from balancer.upstream.pool_context import PoolContext
from policies.facts import Endpoint


class ConnectionPool(Pool):
    """HTTP/1.1 connections to one endpoint, each of which serves one request at a time."""

    def __init__(self, endpoint: Endpoint, pools: PoolContext) -> None:
        super().__init__(endpoint, pools)
        limits = pools.settings.pool
        self.idle_timeout = IdleTimeout(limits.risk, pools.cached_time)
        self.idle_connections = IdleConnections(self.idle_timeout, pools.now, limits.idle_timeout)
        self.idle_connections.apply(limits.idle_timeout, 0.0)
        self.preconnect = Preconnect(self.counts)
        self.connections: dict[UpstreamConnection, None] = {}  # idle or leased, in order of opening
        self._idle: dict[UpstreamConnection, None] = {}  # given back recently, oldest first
        self._takes_back = True

    @property
    def idle(self) -> int:
        return len(self._idle) + len(self.idle_connections)

    @property
    def has_idle(self) -> bool:
        return bool(self._idle) or self.idle_connections.has_leasable

    @property
    def standing(self) -> int:
        return len(self.connections)

    @property
    def leased(self) -> int:
        return len(self.connections) - self.idle

    @property
    def streams(self) -> int:
        return self.leased

    @property
    def idle_limit(self) -> float:
        return self.idle_connections.limit

    @property
    def is_idle_limit_learned(self) -> bool:
        return self.idle_timeout.is_learned

    def listed(self, most: int) -> list[ConnectionInfo]:
        return [_snapshot(upstream) for upstream in islice(self.connections, most)]

    def lease(self) -> UpstreamConnection | None:
        """Lease the newest idle connection whose idle time is within the estimate, else None."""
        if not self._idle:
            return self._lease_idle(self.idle_connections.limit)
        self.counts.reused += 1
        return self._idle.popitem()[0]

    def lease_quiet(self) -> UpstreamConnection | None:
        """Lease a connection for a request that cannot be retried: with the strict idle limit, and only if the kernel
        has received no close for it. If there are only older ones, the oldest is closed: a new one takes its place."""
        upstream = self._lease_strict()
        while upstream is not None and _has_been_closed(upstream):
            upstream = self._lease_strict()
        if upstream is None and self.idle > 1:
            self.close_oldest()
        return upstream

    def _lease_strict(self) -> UpstreamConnection | None:
        limit = self.idle_connections.strict_limit
        if not self._idle:
            return self._lease_idle(limit)
        if limit < 2 * MIN_IDLE_AGE:  # greatest idle time of a connection in `_idle`
            return None
        self.counts.reused += 1
        return self._idle.popitem()[0]

    def _lease_idle(self, limit: float) -> UpstreamConnection | None:
        upstream = self.idle_connections.lease(limit)
        if upstream is not None:
            self.counts.reused += 1
        return upstream

    def wait(self, waiter: LeaseWaiter) -> None:
        """As in `Pool`; the waiter gets the connection that is opened, or one that is given back sooner."""
        self.counts.cold += 1
        if len(self._waiters) < self.connector.unclaimed:
            self._waiters.append(waiter)
        elif self.connector.may_open:
            self._waiters.append(waiter)
            self.connector.open(self, None)
        else:
            self.connector.fail_in_backoff(waiter)

    def open(self, waiter: LeaseWaiter, *, is_trial: bool = False) -> None:
        """As in `Pool`, for this lease waiter alone."""
        self.counts.cold += not is_trial
        if is_trial or self.connector.may_open:
            self.connector.open(self, waiter)
        else:
            self.connector.fail_in_backoff(waiter)

    def give_back(self, upstream: UpstreamConnection) -> None:
        """Take back a leased connection: keep it if it can be reused, else close it."""
        now = self.pools.cached_time
        upstream.requests_left = left = upstream.requests_left - 1
        if not (upstream.is_reusable and self._takes_back and left) or now > upstream.retire_at:
            upstream.close()
            return
        upstream.idle_since = now
        self._idle[upstream] = None
        if self._waiters:
            self.serve()

    def _lease_waited(self) -> UpstreamConnection | None:
        """As `lease`, but quiet: the request that waits may be one that cannot be retried."""
        upstream = self.lease() if self._idle else None
        while upstream is not None and _has_been_closed(upstream):
            upstream = self.lease() if self._idle else None
        return upstream

    def connection_closed(self, upstream: UpstreamConnection) -> None:
        """Remove a closed connection, idle or leased, from the pool and count why it closed."""
        if not upstream.is_counted:  # it closed, or timed out, while being opened
            return
        self.counts.count_closed(upstream.closed_by)
        if upstream in self._idle:
            del self._idle[upstream]
            self.counts.count_lost(self.idle_connections.lost(upstream))
        elif self.idle_connections.discard(upstream):
            self.counts.count_lost(self.idle_connections.lost(upstream))
        elif upstream.has_died and upstream.idle_since and upstream not in self.preconnect.heartbeats:
            self.counts.died += 1
            self.idle_connections.died(upstream)
        del self.connections[upstream]
        self.pools.count_closed()

    def prune(self, now: float) -> None:
        while self._idle:
            oldest = next(iter(self._idle))
            if now - oldest.idle_since < MIN_IDLE_AGE:
                break
            del self._idle[oldest]
            self.idle_connections.add(oldest)
        limits = self.pools.settings.pool
        self.idle_connections.judge(now, self.counts.reused)
        if len(self.idle_connections):
            self.idle_connections.apply(limits.idle_timeout, self.round_trip)
            self.idle_connections.expire(now, limits.idle_timeout)
        if limits.preconnect or self.preconnect.heartbeats:
            self.preconnect.look(self, now, limits, self.pools.room)

    def close_oldest(self) -> None:
        if len(self.idle_connections):
            self.idle_connections.close_oldest()
            return
        upstream = next(iter(self._idle))
        del self._idle[upstream]
        upstream.close()

    def close_idle(self) -> None:
        while self.idle:
            self.close_oldest()

    def apply(self) -> None:
        super().apply()
        limits = self.pools.settings.pool
        self.idle_timeout.risk = limits.risk
        self.idle_connections.apply(limits.idle_timeout, self.round_trip)

    def keep_alive(self, is_wanted: bool) -> None:
        self._takes_back = is_wanted and not self.is_retired
        super().keep_alive(is_wanted)

    def retire(self) -> None:
        self._takes_back = False
        self.preconnect.stop()
        super().retire()

    # --- called by the connector

    async def connect(self, tls: ClientTls | None) -> UpstreamConnection:
        timeout = self.pools.settings.timeouts.connect
        upstream, phases = await dial(lambda: UpstreamConnection(self), self.route, timeout, tls)
        upstream.phases = phases
        return upstream

    def opening_failed(self, error: ConnectFailed, waiter: LeaseWaiter | None) -> None:
        """Fail the connect's own lease waiter, or the first in the queue."""
        if waiter is None and self._waiters:
            waiter = self._waiters.popleft()
        if waiter is not None:
            waiter.connect_failed(error)

    def connection_opened(
        self, upstream: UpstreamConnection, waiter: LeaseWaiter | None, elapsed: float
    ) -> None:
        """Give an opened connection to its lease waiter or to the first in the queue, else keep it."""
        self.connector.record_opened(upstream.phases, elapsed)
        self.connections[upstream] = None
        self._set_lifetime(upstream)
        if upstream.is_closed:
            self.connection_closed(upstream)
        if waiter is None and self._waiters:
            waiter = self._waiters.popleft()
        if waiter is None:
            upstream.requests_left += 1  # it has served no request; `give_back` counts one
            self.give_back(upstream)
        elif upstream.is_closed:  # closed since the handshake
            waiter.connect_failed(ConnectFailed("the worker closed the connection at once"))
        else:
            waiter.connected(upstream)

    def _set_lifetime(self, upstream: UpstreamConnection) -> None:
        """Set the connection's maximum age and number of requests, with jitter."""
        limits, rng = self.pools.settings.pool, self.pools.rng
        upstream.is_counted = True
        upstream.opened_at = self.pools.cached_time
        upstream.retire_at = upstream.opened_at + limits.lifetime(rng)
        upstream.granted = upstream.requests_left = limits.grant(rng)


def _has_been_closed(upstream: UpstreamConnection) -> bool:
    """Return whether the kernel has received a close, or unsolicited bytes, for a leased connection; it is closed
    then."""
    if upstream.is_quiet():
        return False
    upstream.closed_by = WORKER
    upstream.close()
    return True


def _snapshot(upstream: UpstreamConnection) -> ConnectionInfo:
    is_idle = upstream.is_reusable and upstream.idle_since > 0
    return ConnectionInfo(
        local_address(upstream.transport),
        upstream.opened_at,
        upstream.idle_since if is_idle else None,
        upstream.granted - upstream.requests_left,
        int(not is_idle),
        upstream.phases,
    )
