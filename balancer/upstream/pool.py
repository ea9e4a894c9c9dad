"""A worker's connections: lease, give back, age, count.

Rule of this file: every decision is synchronous; only opening a connection is a task. A connection is idle,
leased or gone, and it leaves by one door, `connection_closed`, so the counts always add up. The newest idle
connection is leased first: it is the least likely to have been closed by the worker (RFC 9112 § 9.3.1), and
the oldest are left to age out. Who has just been given back is leased without a look at any clock; the sweep moves who
was not needed soon to `rested.py`, where ages are looked at.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from balancer.errors import ConnectFailed
from balancer.tls.contexts import HTTP1
from balancer.upstream.backoff import Backoff
from balancer.upstream.connection import UpstreamConnection, connect
from balancer.upstream.connection_counts import WORKER, PoolCounts
from balancer.upstream.connection_info import ConnectionInfo, listed_upstream
from balancer.upstream.dial import unforeseen
from balancer.upstream.idle_connections import IdleConnections
from balancer.upstream.idle_timeout import REST, IdleTimeout
from balancer.upstream.preconnect import Preconnect
from balancer.upstream.route import Route

if TYPE_CHECKING:
    from balancer.tls.contexts import ClientTls
    from balancer.upstream.pool_limits import PoolLimits
    from balancer.upstream.pools import Pools
    from policies.routing.facts import Endpoint

NATIVE: Final = "native"
"""The transport of this file: one request at a time on a connection, in HTTP/1.1."""


FRESH: Final = 0.3
"""What the last connection counts in the time that connecting takes: a repeated SYN alone is a second."""


class LeaseWaiter(Protocol):
    """Who asked for a connection and had to wait."""

    def connected(self, upstream: UpstreamConnection) -> None: ...
    def connect_failed(self, error: ConnectFailed) -> None: ...


class Pool:
    """The connections to one endpoint. In seconds: `trip` is how long connecting took the last time, `connect_time`
    what it takes of late until a request can be sent, TLS included."""

    def __init__(self, endpoint: Endpoint, pools: Pools) -> None:
        self.endpoint = endpoint
        self.route = Route(endpoint, pools.routes)
        self.transport = NATIVE
        self.alpn = HTTP1
        self.counts = PoolCounts()
        self.opening = 0
        self.is_retired = False
        self.keeps_alive = True
        self.trip = self.connect_time = 0.0
        self.horizon = IdleTimeout(pools.limits.horizon, pools.cached_time)
        self.rested = IdleConnections(self.horizon, pools.now, pools.limits.idle)
        self.rested.go_by(pools.limits.idle, 0.0)
        self.backoff = Backoff(pools.rng, pools.limits.backoff)
        self.warmth = Preconnect(self)
        self.last_error: ConnectFailed | None = None  # why a connection could not be opened, the last time
        self._pools = pools
        self.connections: dict[
            UpstreamConnection, None
        ] = {}  # that stand, idle or leased, in order of opening
        self._idle: dict[
            UpstreamConnection, None
        ] = {}  # given back just now, in this order: the newest is last
        self._takes_back = True
        self._lessees: deque[LeaseWaiter] = deque()
        self._is_serving = False
        self._unclaimed = 0  # being opened for whoever waits then, or for nobody
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order of beginning

    def __repr__(self) -> str:
        return f"<Pool {self.endpoint.id} idle={self.idle} leased={self.leased} opening={self.opening}>"

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle) + len(self.rested)

    @property
    def is_warm(self) -> bool:
        """Whether a request that is sent now finds one."""
        return bool(self._idle) or self.rested.has_young

    @property
    def standing(self) -> int:
        """Connections, idle or leased."""
        return len(self.connections)

    @property
    def leased(self) -> int:
        """Connections that serve a request."""
        return len(self.connections) - self.idle

    @property
    def last_fault(self) -> str | None:
        """Why a connection could not be opened, the last time."""
        return self.last_error.inside if self.last_error is not None else None

    @property
    def streams(self) -> int:
        """Requests under way; here a connection has one."""
        return self.leased

    def listed(self, most: int) -> list[ConnectionInfo]:
        """So many connections, the oldest, as they are told of."""
        return [listed_upstream(upstream) for upstream in islice(self.connections, most)]

    def lease(self) -> UpstreamConnection | None:
        """The newest idle connection, if there is one that the worker keeps still."""
        if not self._idle:
            return self._lease_rested(self.rested.limit)
        self.counts.reused += 1
        return self._idle.popitem()[0]

    def lease_quiet(self) -> UpstreamConnection | None:
        """Like `lease`, for requests that cannot be repeated: a stricter horizon, and the kernel is asked whether a
        close has arrived."""
        while (upstream := self._lease_strict()) is not None:
            if upstream.is_quiet():
                return upstream
            upstream.closed_by = WORKER
            upstream.close()
        return None

    def _lease_strict(self) -> UpstreamConnection | None:
        limit = self.rested.strict_limit
        if not self._idle:
            return self._lease_rested(limit)
        if limit < 2 * REST:  # as old as one may be that has not been told to rest
            return None
        self.counts.reused += 1
        return self._idle.popitem()[0]

    def _lease_rested(self, limit: float) -> UpstreamConnection | None:
        upstream = self.rested.lease(limit)
        if upstream is not None:
            self.counts.reused += 1
        return upstream

    def wait(self, lessee: LeaseWaiter) -> None:
        """Open a connection, unless one is being opened that nobody waits for any more; the lessee gets it, or one that
        is given back sooner. While the endpoint is in trouble it hears at once, or soon, that there is none."""
        self.counts.cold += 1
        if len(self._lessees) < self._unclaimed:
            self._lessees.append(lessee)
        elif self._may_open():
            self._lessees.append(lessee)
            self._start_opening(None)
        else:
            self._spare(lessee)

    def open(self, lessee: LeaseWaiter, *, is_trial: bool = False) -> None:
        """Open a connection for this lessee alone: a second attempt must not meet a second stale one. A trial, to find
        out whether it can be done, is made in trouble, too."""
        self.counts.cold += not is_trial
        if is_trial or self._may_open():
            self._start_opening(lessee)
        else:
            self._spare(lessee)

    def open_ahead(self) -> bool:
        """Open one for nobody yet. Returns whether that may be."""
        may_open = self._may_open() and self._takes_back and not self.route.is_down
        if may_open:
            self._start_opening(None)
        return may_open

    def _may_open(self) -> bool:
        return not self.backoff.is_in_trouble or self.backoff.may_try(self.opening, self._pools.now())

    def _spare(self, lessee: LeaseWaiter) -> None:
        """It hears what became of the last one that was tried. Soon, not now: who asks is not ready to hear."""
        self.counts.spared += 1
        error = self.last_error or ConnectFailed("no connection could be opened just now")
        asyncio.get_running_loop().call_soon(lessee.connect_failed, error)

    def give_back(self, upstream: UpstreamConnection) -> None:
        """The exchange is done with it: keep it if it can serve again."""
        now = self._pools.cached_time
        upstream.requests_left = left = upstream.requests_left - 1
        if not (upstream.is_reusable and self._takes_back and left) or now > upstream.retire_at:
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

    def connection_closed(self, upstream: UpstreamConnection) -> None:
        """ConnectionOwner: it is gone, whoever had it."""
        if not upstream.is_counted:  # it was never ours: it ended, or its time did, while it was being opened
            return
        self.counts.count_closed(upstream.closed_by)
        if upstream in self._idle:
            del self._idle[upstream]
            self.counts.count_lost(self.rested.lost(upstream))
        elif self.rested.discard(upstream):
            self.counts.count_lost(self.rested.lost(upstream))
        elif upstream.has_died and upstream.idle_since and upstream not in self.warmth.beating:
            self.counts.died += 1
            self.rested.died(upstream)
        del self.connections[upstream]
        self._pools.open_connections -= 1

    def prune(self, now: float) -> None:
        """The sweep: close what has been idle too long, oldest first, and open ahead what will be needed."""
        while self._idle:
            oldest = next(iter(self._idle))
            if now - oldest.idle_since < REST:
                break
            del self._idle[oldest]
            self.rested.add(oldest)
        limits = self._pools.limits
        self.rested.judge(now, self.counts.reused)
        if len(self.rested):
            self.rested.go_by(limits.idle, self.trip)
            self.rested.expire(now, limits.idle)
        if limits.warm or self.warmth.beating:
            self.warmth.look(now, limits, self._pools.room)

    def close_oldest(self) -> None:
        """Give up the idle connection that has waited longest."""
        if len(self.rested):
            self.rested.close_oldest()
            return
        upstream = next(iter(self._idle))
        del self._idle[upstream]
        upstream.close()

    def close_idle(self) -> None:
        """Keep nothing that nobody uses."""
        while self.idle:
            self.close_oldest()

    def go_by(self, limits: PoolLimits) -> None:
        """Other limits than before; what was learned stays."""
        self.horizon.rules, self.backoff.longest = limits.horizon, limits.backoff
        self.rested.go_by(limits.idle, self.trip)

    def keep_alive(self, is_wanted: bool) -> None:
        """Whether a connection may serve a second request."""
        self.keeps_alive = is_wanted
        self._takes_back = is_wanted and not self.is_retired
        if not is_wanted:
            self.close_idle()

    def retire(self) -> None:
        """The endpoint is gone: keep nothing idle, take nothing back."""
        self.is_retired = True
        self._takes_back = False
        self.warmth.stop()
        self.close_idle()

    def close(self) -> list[asyncio.Task[None]]:
        """Retire, and cancel what is being opened; returns the tasks to wait for."""
        self.retire()
        self._lessees.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    def _start_opening(self, lessee: LeaseWaiter | None) -> None:
        # Now: when the task begins the endpoint may have been removed, and with it how it is met.
        tls = self._pools.tls.of(self.endpoint, self.alpn)
        self._pools.make_room()
        self.opening += 1
        self._unclaimed += lessee is None
        self._pools.open_connections += 1
        task = asyncio.get_running_loop().create_task(self._open(lessee, tls))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _open(self, lessee: LeaseWaiter | None, tls: ClientTls | None) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            route, timeout = self.route, self._pools.limits.connect_timeout
            upstream = await connect(self, route.host, route.port, timeout, tls, route)
        except ConnectFailed as error:
            self._opening_failed(error, lessee)
        except Exception as error:  # a fault of ours: it is told below, and is not for the lessee to wait for
            self.route.failed(fault := unforeseen(error))
            self._opening_failed(fault, lessee)
            raise
        except BaseException:
            self._stop_opening(lessee)
            raise
        else:
            self.trip = upstream.phases.trip or loop.time() - begun
            self._took(upstream.phases.appconnect or self.trip)
            self._opened(upstream, lessee)

    def _took(self, seconds: float) -> None:
        """So long for the last: one that was slow says little of the next."""
        self.connect_time += (seconds - self.connect_time) * (FRESH if self.connect_time else 1.0)

    def _stop_opening(self, lessee: LeaseWaiter | None) -> None:
        self.opening -= 1
        self._unclaimed -= lessee is None
        self._pools.open_connections -= 1

    def _opening_failed(self, error: ConnectFailed, lessee: LeaseWaiter | None) -> None:
        self._stop_opening(lessee)
        self.counts.failed += 1
        self.backoff.failed(self._pools.now())
        self.last_error = bare(error)
        if lessee is None and self._lessees:
            lessee = self._lessees.popleft()
        if lessee is not None:
            lessee.connect_failed(error)

    def _opened(self, upstream: UpstreamConnection, lessee: LeaseWaiter | None) -> None:
        self.opening -= 1
        self._unclaimed -= lessee is None
        self.counts.count_opened(upstream.phases)
        self.backoff.succeeded()
        self.connections[upstream] = None
        self._equip(upstream)
        if upstream.is_closed:
            self.connection_closed(upstream)
        if lessee is None and self._lessees:
            lessee = self._lessees.popleft()
        if lessee is None:
            upstream.requests_left += 1  # this was none
            self.give_back(upstream)
        elif upstream.is_closed:  # between the handshake and now
            lessee.connect_failed(ConnectFailed("the worker closed the connection at once"))
        else:
            lessee.connected(upstream)

    def _equip(self, upstream: UpstreamConnection) -> None:
        """How old it may become, and how many requests it may serve."""
        limits, rng = self._pools.limits, self._pools.rng
        upstream.is_counted = True
        upstream.opened_at = self._pools.cached_time
        upstream.retire_at = upstream.opened_at + limits.lifetime(rng)
        upstream.granted = upstream.requests_left = limits.grant(rng)


def bare(error: ConnectFailed) -> ConnectFailed:
    """The same without where it came from: frames would keep whoever had waited for the connection."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
