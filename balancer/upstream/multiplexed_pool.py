"""Pool of multiplexed connections to one endpoint: leases upstream streams instead of connections.

As in `pool.py`, all decisions are synchronous and only connecting is a task. One connection is opened at a time, and
the lease waiters that arrive meanwhile share it. Another one is opened when no connection has room for a stream.

No idle timeout is estimated: the worker announces its close (GOAWAY, RFC 9113 § 6.8), and requests that it has not
processed are retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from balancer.errors import ConnectFailed, UpstreamError
from balancer.tls.contexts import HTTP1, HTTP2
from balancer.upstream.connection import UpstreamConnection
from balancer.upstream.connection_counts import US, WORKER
from balancer.upstream.connection_info import ConnectionInfo, multiplexed_info
from balancer.upstream.dial import internal_failure
from balancer.upstream.idle_timeout import IdleTimeoutRules
from balancer.upstream.pool import LeaseWaiter, Pool, bare
from balancer.upstream.stream import MultiplexedConnection, UpstreamStream
from policies.facts import Endpoint

if TYPE_CHECKING:
    from balancer.tls.contexts import ClientTls
    from balancer.upstream.pool_limits import PoolLimits
    from balancer.upstream.pools import Pools

Opener = Callable[["MultiplexedPool", "ClientTls | None"], Awaitable[MultiplexedConnection]]
"""Opens a multiplexed connection. Raises `ConnectFailed`."""


NO_LEARNING: Final = IdleTimeoutRules(risk=0.0)


class MultiplexedPool(Pool):
    """Pool of multiplexed connections to one endpoint. `idle` and `leased` count connections without and with
    streams."""

    def __init__(self, endpoint: Endpoint, pools: Pools, transport: str, opener: Opener) -> None:
        super().__init__(endpoint, pools)
        self.transport = transport
        self.alpn = HTTP2 if transport == "http2" else HTTP1
        self.stream_limit = 0  # SETTINGS_MAX_CONCURRENT_STREAMS that the worker sent last; 0: none yet
        self.apply(pools.limits)
        self._opener = opener
        self._carriers: list[MultiplexedConnection] = []  # open ones, in order of opening

    @property
    def idle(self) -> int:
        return sum(not carrier.leased for carrier in self._carriers)

    @property
    def has_idle(self) -> bool:
        return any(has_stream_room(carrier) for carrier in self._carriers)

    @property
    def leased(self) -> int:
        return len(self._carriers) - self.idle

    @property
    def standing(self) -> int:
        return len(self._carriers)

    @property
    def streams(self) -> int:
        return sum(carrier.leased for carrier in self._carriers)

    def listed(self, most: int) -> list[ConnectionInfo]:
        return [multiplexed_info(carrier) for carrier in self._carriers[:most] if not carrier.is_library]

    @property
    def pools(self) -> Pools:
        return self._pools

    @property
    def origin(self) -> tuple[str, int]:
        """Host and port of the endpoint."""
        return self.route.host, self.route.port

    # --- leasing

    def lease(self) -> UpstreamConnection | None:
        """Lease a stream on a connection that has room, else None."""
        for carrier in self._carriers:
            if has_stream_room(carrier):
                if (carrier.leased or carrier.life.idle_since) and not carrier.is_library:
                    self.counts.reused += 1
                return self._new_stream(carrier)
        return None

    def lease_quiet(self) -> UpstreamConnection | None:
        for carrier in self._carriers:
            if has_stream_room(carrier) and carrier.is_quiet():
                return self.lease()
        return None

    def _new_stream(self, carrier: MultiplexedConnection) -> UpstreamStream:
        stream, life = UpstreamStream(self, carrier), carrier.life
        stream.idle_since = life.idle_since
        stream.phases = life.phases
        life.requests += 1
        carrier.leased += 1
        return stream

    def wait(self, waiter: LeaseWaiter) -> None:
        """Queue a lease waiter, as `open` does."""
        self.open(waiter)

    def open(self, waiter: LeaseWaiter, *, is_trial: bool = False) -> None:
        """Queue a lease waiter and serve it as soon as a connection has room; open a connection if none has.

        During a backoff the waiter fails instead. A trial connects in spite of the backoff. A broken connection is not
        in the pool any more, so a retry cannot get it again.
        """
        if not any(has_stream_room(carrier) for carrier in self._carriers):
            self.counts.cold += not is_trial
            if is_trial and not self.opening:
                self._start_opening(None)
            elif not (self.opening or self._may_open()):
                self._spare(waiter)
                return
        self._waiters.append(waiter)
        self._serve()

    def give_back(self, upstream: UpstreamConnection) -> None:
        """Take back a stream that has ended."""
        carrier = cast(UpstreamStream, upstream).carrier
        carrier.leased -= 1
        carrier.life.idle_since = self._pools.cached_time
        if not carrier.leased and (self.is_retired or not has_stream_room(carrier)):
            carrier.retire()
        if self._waiters:
            self._serve()

    def room_changed(self) -> None:
        """Serve the lease waiters: a connection may have room for more streams."""
        if self._waiters:
            self._serve()

    def _serve(self) -> None:
        """Serve lease waiters one at a time. Not re-entrant: a waiter may call back into the pool at once."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._waiters and (upstream := self.lease()) is not None:
                self._waiters.popleft().connected(upstream)
        finally:
            self._is_serving = False
        self._open_for_waiters()

    # --- opening

    def _open_for_waiters(self) -> None:
        wanted = min(1, len(self._waiters)) if self.keeps_alive else len(self._waiters)
        while self.opening < wanted and self._may_open():
            self._start_opening(None)
        while self._waiters and not self.opening:
            self._spare(self._waiters.popleft())

    async def _open(self, waiter: LeaseWaiter | None, tls: ClientTls | None) -> None:
        try:
            carrier = await self._opener(self, tls)
        except ConnectFailed as error:
            self._opening_failed(error, None)
        except Exception as error:  # a fault of the balancer, as in `Pool._open`
            self.route.failed(fault := internal_failure(error))
            self._opening_failed(fault, None)
            raise
        except BaseException:
            self._stop_opening(waiter)
            raise
        else:
            self._carrier_opened(carrier)

    def _opening_failed(self, error: ConnectFailed, waiter: LeaseWaiter | None) -> None:
        self._stop_opening(waiter)
        self.backoff.failed(self._pools.now())
        self._fail_waiters(error)

    def _fail_waiters(self, error: ConnectFailed) -> None:
        """Fail all lease waiters, which shared one connect; without reuse, where each has its own, only the first."""
        self.counts.failed += 1
        self.last_error = bare(error)
        for _ in range(len(self._waiters) if self.keeps_alive else 1):
            if self._waiters:  # waiters added meanwhile wait for the next connect
                self._waiters.popleft().connect_failed(error)

    def _carrier_opened(self, carrier: MultiplexedConnection) -> None:
        self.opening -= 1
        self._unclaimed -= 1
        self._carriers.append(carrier)
        self._set_lifetime(carrier)
        if self.is_retired and not self._waiters:
            carrier.retire()
        elif carrier.room <= 0:  # closed since the handshake
            self._fail_waiters(ConnectFailed("the worker closed the connection at once"))
        else:
            self._serve()
            if not carrier.leased and not carrier.life.idle_since:
                carrier.life.idle_since = self._pools.cached_time

    def _set_lifetime(self, carrier: MultiplexedConnection) -> None:
        limits, rng, life = self._pools.limits, self._pools.rng, carrier.life
        life.opened_at = self._pools.cached_time
        if carrier.is_library:
            return
        self.counts.count_opened(life.phases)
        self.backoff.succeeded()
        self.trip = life.phases.trip
        self._record_connect_time(life.phases.appconnect)
        life.retire_at = life.opened_at + limits.lifetime(rng)
        life.granted = limits.grant(rng) if self.keeps_alive else 1

    def multiplexed_closed(self, carrier: MultiplexedConnection, by: str = US) -> None:
        """Remove a closed connection. `by`: which side closed it."""
        if carrier in self._carriers:
            self._carriers.remove(carrier)
            self._pools.open_connections -= 1
            if not carrier.is_library:
                self._count_lost(carrier, by)
        if self._waiters:
            self._serve()

    def library_failed(self, error: UpstreamError) -> UpstreamError:
        """Record a failed connect of a library that connects by itself; returns `error`."""
        if isinstance(error, ConnectFailed):
            self.counts.failed += 1
            self.last_error = bare(error)
            self.route.failed(error)
        return error

    def _count_lost(self, carrier: MultiplexedConnection, by: str) -> None:
        self.counts.count_closed(by)
        if by == WORKER and not carrier.leased:
            self.counts.count_lost(max(0.0, self._pools.now() - carrier.life.idle_since))

    # --- ageing

    def prune(self, now: float) -> None:
        """Retire connections past their maximum age or idle time, and let the others age their streams. With `warm`,
        the newest idle connection is kept and a missing one is opened."""
        limits = self._pools.limits
        for carrier in list(self._carriers):
            if not carrier.is_library and (now > carrier.life.retire_at or self._is_spare(carrier, now)):
                carrier.retire()
            else:
                carrier.prune(now, limits)
        if limits.warm and not (self._carriers or self.opening) and self._pools.room != 0:
            self.open_ahead()

    def _is_spare(self, carrier: MultiplexedConnection, now: float) -> bool:
        limits = self._pools.limits
        if carrier.leased or now - carrier.life.idle_since < limits.idle:
            return False
        return not limits.warm or carrier is not self._carriers[-1]

    def apply(self, limits: PoolLimits) -> None:
        super().apply(replace(limits, idle_timeout=NO_LEARNING))

    def close_oldest(self) -> None:
        idle = [carrier for carrier in self._carriers if not carrier.leased]
        if idle:
            min(idle, key=lambda carrier: carrier.life.idle_since).close()

    def close_idle(self) -> None:
        for carrier in list(self._carriers):
            if not carrier.leased:
                carrier.close()

    def keep_alive(self, is_wanted: bool) -> None:
        super().keep_alive(is_wanted)
        for carrier in list(self._carriers):
            if not (is_wanted or carrier.is_library):
                carrier.retire()

    def retire(self) -> None:
        self.is_retired = True
        self._takes_back = False
        for carrier in list(self._carriers):
            carrier.retire()

    def close(self) -> list[asyncio.Task[None]]:
        """Close all connections and cancel connects; returns the tasks to wait for."""
        tasks = super().close()
        for carrier in list(self._carriers):
            carrier.close()
        return tasks


def has_stream_room(carrier: MultiplexedConnection) -> bool:
    """Whether the connection may take one more stream."""
    return carrier.room > 0 and carrier.life.requests < carrier.life.granted
