"""Connector of one pool: opens its connections in tasks, counts connects, and backs off after failures.

A pool decides when to open a connection and who gets it; the connector runs the connect and reports its end to the
pool, which is an argument: kept here it would be a reference cycle.

After `FAILURES` consecutive failures, connections are opened one at a time with growing pauses, until a connect
succeeds. The pause doubles with each failure and is drawn from its upper half, so that balancers do not retry in step
(Brooker, "Exponential backoff and jitter").
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from balancer.errors import ConnectFailed
from balancer.tls.contexts import ClientTls
from balancer.upstream.connection_counts import PoolCounts
from balancer.upstream.dial.dial import internal_failure
from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.dial.target import NetworkRoute
from balancer.upstream.pool_context import PoolContext

if TYPE_CHECKING:
    from balancer.upstream.pool import LeaseWaiter, Pool


FAILURES: Final = 3
"""Consecutive failures that start the backoff. Fewer are treated as accidents and retried at once."""

MIN_PAUSE_S: Final = 0.1
"""First pause in seconds, before jitter."""


class Backoff:
    """Backoff state of one endpoint. `longest`: maximum pause in seconds, 0: no backoff. `failures`: consecutive failed
    connects, the last one at `failed_at`; both are also kept without a backoff."""

    def __init__(self, rng: Random, longest: float) -> None:
        self.longest = longest
        self._rng = rng
        self.failures = 0
        self.failed_at = 0.0
        self._until = 0.0

    @property
    def is_backing_off(self) -> bool:
        """Whether the backoff is active, so that connections are opened one at a time."""
        return self.failures >= FAILURES and self.longest > 0

    def may_try(self, opening: int, now: float) -> bool:
        """Whether another connection may be opened at `now` while `opening` connects are in progress."""
        return not self.is_backing_off or (opening == 0 and now >= self._until)

    def failed(self, now: float) -> None:
        """Record a failed connect and schedule the next attempt."""
        self.failures += 1
        self.failed_at = now
        if self.is_backing_off:
            doublings = min(self.failures - FAILURES, 30)
            self._until = now + min(self.longest, MIN_PAUSE_S * 2.0**doublings) * self._rng.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """Record a successful connect: ends the backoff."""
        self.failures = 0


CONNECT_TIME_WEIGHT: Final = 0.3
"""Weight of the last connect in the moving average. It is small, because one repeated SYN takes a second."""


class Connector:
    """Connects of one pool. `opening`: connects in progress; `unclaimed`: those not bound to a lease waiter.
    `last_error`: of the last failed connect."""

    def __init__(self, route: NetworkRoute, counts: PoolCounts, pools: PoolContext) -> None:
        self.opening = self.unclaimed = 0
        self._trip = self._mean = 0.0
        self.backoff = Backoff(pools.rng, pools.settings.pool.max_backoff)
        self.last_error: ConnectFailed | None = None
        self._route = route
        self._counts = counts
        self._pools = pools
        self._tasks: dict[asyncio.Task[None], float] = {}  # with their start times, in that order

    @property
    def round_trip(self) -> float:
        """Seconds of the last TCP connect, or the configured round trip if that is longer; 0 if unknown."""
        return max(self._trip, self._route.endpoint.round_trip)

    @property
    def connect_time(self) -> float:
        """Moving average of the seconds until a request can be sent, TLS included, 0 if unknown; or those that the
        oldest connect in progress has taken, if they are more: it may hang.

        It is at least the configured round trip: where a proxy completes handshakes, the first request waits for
        another one.
        """
        began_at = next(iter(self._tasks.values()), None)
        mean = max(self._mean, self._route.endpoint.round_trip)
        return mean if began_at is None else max(mean, self._pools.now() - began_at)

    @property
    def may_open(self) -> bool:
        """Whether the backoff allows a connect now."""
        return self.backoff.may_try(self.opening, self._pools.now())

    def open(self, pool: Pool, waiter: LeaseWaiter | None) -> None:
        """Start a connect for `pool`, for `waiter` alone unless it is None."""
        # Before the task starts: by then the endpoint, and its TLS configuration, may have been removed.
        tls = self._pools.tls_of(self._route.endpoint, pool.alpn)
        self._pools.make_room()
        self.opening += 1
        self.unclaimed += waiter is None
        self._pools.count_opened()
        task = asyncio.get_running_loop().create_task(self._open(pool, waiter, tls))
        self._tasks[task] = self._pools.now()
        task.add_done_callback(self._tasks.pop)

    def fail_in_backoff(self, waiter: LeaseWaiter) -> None:
        """Fail a lease waiter with the last connect error. Deferred to the next loop iteration: the caller is not
        re-entrant."""
        self._counts.spared += 1
        error = self.last_error or ConnectFailed("no connection could be opened just now")
        asyncio.get_running_loop().call_soon(waiter.connect_failed, error.repeated())

    def record_opened(self, phases: DialTimes, elapsed: float) -> None:
        """Count an opened connection and end the backoff; `elapsed` replaces a phase that was not measured."""
        self._counts.count_opened(phases)
        self.backoff.succeeded()
        self._trip = phases.trip or elapsed
        weight = CONNECT_TIME_WEIGHT if self._mean else 1.0
        self._mean += ((phases.appconnect or self._trip) - self._mean) * weight

    def record_failed(self, error: ConnectFailed) -> None:
        """Count a failed connect and keep its error."""
        self._counts.failed += 1
        # Without traceback, context and cause: their frames would keep lease waiters alive.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        self.last_error = error

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all connects; returns the tasks to wait for."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def _open(self, pool: Pool, waiter: LeaseWaiter | None, tls: ClientTls | None) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            connection = await pool.connect(tls)
        except ConnectFailed as error:
            self._failed(pool, error, waiter)
        except Exception as error:  # a fault of the balancer: fail the waiters, then re-raise
            self._route.failed(fault := internal_failure(error))
            self._failed(pool, fault, waiter)
            raise
        except BaseException:
            self._ended(waiter)
            self._pools.count_closed()
            raise
        else:
            self._ended(waiter)  # the connection counts as open until the pool removes it
            pool.connection_opened(connection, waiter, loop.time() - begun)

    def _ended(self, waiter: LeaseWaiter | None) -> None:
        self.opening -= 1
        self.unclaimed -= waiter is None

    def _failed(self, pool: Pool, error: ConnectFailed, waiter: LeaseWaiter | None) -> None:
        self._ended(waiter)
        self._pools.count_closed()
        self.backoff.failed(self._pools.now())
        self.record_failed(error)
        pool.opening_failed(error, waiter)
