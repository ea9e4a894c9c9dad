"""Interface of the connection pool of one endpoint.

Two classes implement it: `ConnectionPool` (HTTP/1.1, one request at a time per connection) and `MultiplexedPool` (many
streams per connection). Both hold a `Connector`, which opens their connections.

`Pool` is a class and not a `typing.Protocol` for the reason given in `request.py`: the exchange leases from it once per
request.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from typing import Any, Final, Protocol

from balancer.errors import ConnectFailed
from balancer.tls.contexts import HTTP1, ClientTls
from balancer.upstream.connection_counts import ConnectionInfo, PoolCounts
from balancer.upstream.connector import FAILURES, Connector
from balancer.upstream.dial.target import NetworkRoute
from balancer.upstream.pool_context import PoolContext
from balancer.upstream.request import UpstreamRequest
from policies.facts import Endpoint

NATIVE: Final = "native"
"""Name of the transport of `ConnectionPool`."""


class LeaseWaiter(Protocol):
    """Receiver of an upstream that `Pool.wait` or `Pool.open` obtains. `needs_own`: none may share its connection."""

    needs_own: bool

    def connected(self, upstream: UpstreamRequest) -> None: ...
    def connect_failed(self, error: ConnectFailed) -> None: ...


class Pool:
    """Connections to one endpoint, and the lease waiters that no connection has served yet; abstract."""

    transport = NATIVE
    alpn = HTTP1  # protocol offered in the TLS handshake
    is_multiplexed = False  # a connection serves several requests at a time
    carries_rpcs = False  # as gRPC needs them, with trailers in both directions

    def __init__(self, endpoint: Endpoint, pools: PoolContext) -> None:
        self.endpoint = endpoint
        self.route = NetworkRoute(endpoint, pools.routes)
        self.counts = PoolCounts()
        self.connector = Connector(self.route, self.counts, pools)
        self.is_retired = False  # the endpoint was removed
        self.keeps_alive = True  # connections are reused
        self.pools = pools
        self._waiters: deque[LeaseWaiter] = deque()
        self._is_serving = False

    def __repr__(self) -> str:
        return f"<Pool {self.endpoint.id} idle={self.idle} leased={self.leased} opening={self.opening}>"

    # --- state

    @property
    @abstractmethod
    def idle(self) -> int:
        """Number of idle connections, an idle-timeout probe included."""

    @property
    @abstractmethod
    def has_idle(self) -> bool:
        """Whether a request would get an open connection now."""

    @property
    @abstractmethod
    def leased(self) -> int:
        """Number of connections that serve a request."""

    @property
    @abstractmethod
    def standing(self) -> int:
        """Number of open connections, idle or leased."""

    @property
    @abstractmethod
    def streams(self) -> int:
        """Number of requests in flight."""

    @property
    @abstractmethod
    def idle_limit(self) -> float:
        """Idle time in seconds up to which a connection is leased."""

    @property
    @abstractmethod
    def is_idle_limit_learned(self) -> bool:
        """Whether `idle_limit` comes from an estimate of the worker's idle timeout."""

    @property
    def opening(self) -> int:
        """Number of connects in progress."""
        return self.connector.opening

    @property
    def connect_time(self) -> float:
        """Seconds until a request can be sent on a new connection, TLS included; 0 if unknown."""
        return self.connector.connect_time

    @property
    def round_trip(self) -> float:
        """Seconds of the last TCP connect, or the configured round trip if that is longer; 0 if unknown."""
        return self.connector.round_trip

    @property
    def last_fault(self) -> str | None:
        """Detail of the last failed connect, None if there was none."""
        error = self.connector.last_error
        return error.inside if error is not None else None

    @property
    def is_backing_off(self) -> bool:
        """Whether a request would fail without a connect: connects keep failing, and no connection is open."""
        return not (self.connector.may_open or self.has_idle)

    @property
    def is_untried(self) -> bool:
        """Whether no connect has been started yet."""
        counts = self.counts
        return not (counts.opened or counts.failed or self.connector.opening)

    @property
    def is_unreachable(self) -> bool:
        """Whether connects keep failing, or all have failed so far, and no connection is open."""
        failures = self.connector.backoff.failures
        return failures > 0 and not self.standing and (failures >= FAILURES or not self.counts.opened)

    @property
    def failed_at(self) -> float:
        """Time of the last failed connect; 0 if there was none."""
        return self.connector.backoff.failed_at

    @abstractmethod
    def listed(self, most: int) -> list[ConnectionInfo]:
        """Snapshots of the `most` oldest connections."""

    # --- leasing

    def open_ahead(self) -> bool:
        """Open a connection that no request waits for. Returns whether that is allowed."""
        may_open = (
            self.connector.may_open and self.keeps_alive and not (self.is_retired or self.route.is_down)
        )
        if may_open:
            self.connector.open(self, None)
        return may_open

    @abstractmethod
    def lease(self) -> UpstreamRequest | None:
        """Lease an open connection, or a stream on one, for a request that may be retried; else None."""

    @abstractmethod
    def lease_quiet(self) -> UpstreamRequest | None:
        """Lease for a request that cannot be retried: only where nothing indicates a close by the worker."""

    def lease_own(self) -> UpstreamRequest | None:
        """As `lease_quiet`, for a request that others must not share a connection with."""
        return self.lease_quiet()

    @abstractmethod
    def wait(self, waiter: LeaseWaiter) -> None:
        """Queue a lease waiter, and open a connection if no connect in progress can serve it.

        During a backoff the waiter fails instead.
        """

    @abstractmethod
    def open(self, waiter: LeaseWaiter, *, is_trial: bool = False) -> None:
        """Obtain an upstream that is not a stale connection, for a retry.

        During a backoff the waiter fails instead. A trial (`is_trial`), which tests whether connecting works, ignores
        the backoff.
        """

    @abstractmethod
    def _lease_waited(self) -> UpstreamRequest | None:
        """Lease for a waiter, as `lease` does, but nothing that was there before it waited."""

    def serve(self) -> None:
        """Serve lease waiters one at a time. Not re-entrant: a waiter may call back into the pool at once, and a
        thousand cancelled ones would recurse."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._waiters and (upstream := self._lease_waited()) is not None:
                self._waiters.popleft().connected(upstream)
        finally:
            self._is_serving = False

    # --- lifetime

    @abstractmethod
    def prune(self, now: float) -> None:
        """Sweep: close connections that are too old or idle for too long, and preconnect."""

    @abstractmethod
    def close_oldest(self) -> None:
        """Close the connection that has been idle longest."""

    @abstractmethod
    def close_idle(self) -> None:
        """Close all idle connections."""

    def apply(self) -> None:
        """Apply changed settings; learned estimates are kept."""
        self.connector.backoff.longest = self.pools.settings.pool.max_backoff

    def keep_alive(self, is_wanted: bool) -> None:
        """Allow or forbid reuse of connections."""
        self.keeps_alive = is_wanted
        if not is_wanted:
            self.close_idle()

    def retire(self) -> None:
        """Retire the pool of a removed endpoint: close idle connections and keep none."""
        self.is_retired = True
        self.close_idle()

    def close(self) -> list[asyncio.Task[None]]:
        """Retire the pool and cancel connects; returns the tasks to wait for."""
        self.retire()
        self._waiters.clear()
        return self.connector.cancel()

    # --- called by the connector; what a connection is depends on the transport

    @abstractmethod
    async def connect(self, tls: ClientTls | None) -> Any:
        """Open a connection. Raises `ConnectFailed`."""

    @abstractmethod
    def connection_opened(self, connection: Any, waiter: LeaseWaiter | None, elapsed: float) -> None:
        """Take an opened connection; `elapsed`: seconds that the connect took."""

    @abstractmethod
    def opening_failed(self, error: ConnectFailed, waiter: LeaseWaiter | None) -> None:
        """Fail the lease waiters of a failed connect."""
