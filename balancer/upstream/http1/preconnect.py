"""Preconnect: keeps idle connections ready, opens missing ones ahead of need, and keeps them alive by heartbeats.

The target is `PoolConfig.preconnect` idle connections beside those in use, and in total at least the recent peak of
connections in use. A connection that is about to reach the idle-timeout estimate does not count: its replacement is
opened, or its heartbeat sent, while it can still be leased. It is driven by the sweep, without tasks or timers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from balancer.config.schema.pool import PoolConfig
from balancer.upstream.connection_counts import PoolCounts
from balancer.upstream.http1.connection import UpstreamConnection
from balancer.upstream.http1.idle_timeout import MIN_IDLE_AGE
from balancer.upstream.internal_request import InternalRequest, InternalResult, internal_head
from policies.stats.load import WindowedMinimum

if TYPE_CHECKING:
    from balancer.upstream.http1.pool import ConnectionPool

CONNECT_TIMES: Final = 3
"""Multiple of the connect time that suffices to open a replacement or to get the response to a heartbeat."""

WINDOW: Final = 60.0
"""Seconds for which a peak of the connections in use counts at least, and twice that at most."""

MIN_IDLE_LIMIT_S: Final = 1.0
"""Idle limit in seconds below which nothing is opened ahead: the connection would expire before it is used."""


class Preconnect:
    """Preconnect of one endpoint. `heartbeats`: heartbeats in flight by their connections.

    A heartbeat is a request on an idle connection that resets the worker's idle timeout. Any complete response counts
    as success, whatever its status.
    """

    def __init__(self, counts: PoolCounts) -> None:
        self._counts = counts
        self._peak = WindowedMinimum(WINDOW)  # of the connections in use, negated
        self.heartbeats: dict[UpstreamConnection, InternalRequest] = {}

    def look(self, pool: ConnectionPool, now: float, limits: PoolConfig, room: int | None) -> None:
        """Sweep: end overdue heartbeats, send due ones and open missing connections. `room`: number of connections that
        may still be opened, None: unlimited."""
        for heartbeat in list(self.heartbeats.values()):
            heartbeat.end_if_overdue(now)
        if not limits.preconnect or pool.idle_connections.limit < MIN_IDLE_LIMIT_S:
            return
        used = pool.leased - len(self.heartbeats)
        self._peak.add(-used, now)
        ending = pool.idle_connections.ending(
            now, min(pool.idle_connections.limit / 2, 2 * MIN_IDLE_AGE + CONNECT_TIMES * pool.round_trip)
        )
        spare = pool.idle_connections.idle_probe is not None
        lasting = pool.standing - len(ending) - spare + pool.opening
        missing = max(used + limits.preconnect, -int(self._peak.least)) - lasting
        if limits.heartbeat is not None:
            together = max(
                1, (pool.idle + len(self.heartbeats)) // 2
            )  # keep half of them available for leases
            for upstream in ending[: max(0, missing)]:
                if len(self.heartbeats) < together:
                    self._send_heartbeat(pool, upstream, limits, now)
                missing -= 1  # its heartbeat is sent now or by a later sweep
        for _ in range(missing if room is None else min(missing, room)):
            if not pool.open_ahead():
                return

    def stop(self) -> None:
        """End all heartbeats in flight as failed."""
        self._counts.heartbeats_failed += len(self.heartbeats)
        for heartbeat in self.heartbeats.values():
            heartbeat.cancel()
        self.heartbeats.clear()

    def _heartbeat_ended(self, upstream: UpstreamConnection, result: InternalResult) -> None:
        self.heartbeats.pop(upstream, None)
        self._counts.heartbeats_failed += result.error is not None

    def _send_heartbeat(
        self, pool: ConnectionPool, upstream: UpstreamConnection, limits: PoolConfig, now: float
    ) -> None:
        method = limits.heartbeat_method
        heartbeat = self.heartbeats[upstream] = InternalRequest(
            internal_head(pool.endpoint, limits.heartbeat or "/", "heartbeat", method),
            partial(self._heartbeat_ended, upstream),
            method=method.encode(),
            timeout=pool.pools.settings.timeouts.connect,
            started_at=now,
        )
        pool.idle_connections.take(upstream)
        self._counts.heartbeats += 1
        heartbeat.send(upstream)
