"""Preconnect: keeps idle connections ready, opens missing ones ahead of need, and keeps them alive by heartbeats.

The target is `PoolLimits.warm` idle connections beside those in use, and in total at least the recent peak of
connections in use. A connection that is about to reach the idle-timeout estimate does not count: its replacement is
opened, or its heartbeat sent, while it can still be leased. It is driven by the sweep, without tasks or timers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from balancer.upstream.heartbeat import Heartbeat, heartbeat_request
from balancer.upstream.idle_timeout import MIN_IDLE_AGE
from balancer.upstream.peak import Peak

if TYPE_CHECKING:
    from balancer.config.pool_limits import PoolLimits
    from balancer.upstream.connection import UpstreamConnection
    from balancer.upstream.connection_pool import ConnectionPool

CONNECT_TIMES: Final = 3
"""Multiple of the connect time that suffices to open a replacement or to get the response to a heartbeat."""


JITTER_FLOOR: Final = 1.0
"""Idle limit in seconds below which nothing is opened ahead: the connection would expire before it is used."""


class Preconnect:
    """Preconnect of one endpoint. `heartbeats`: heartbeats in flight by their connections."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._peak = Peak()
        self.heartbeats: dict[UpstreamConnection, Heartbeat] = {}

    def look(self, now: float, limits: PoolLimits, room: int | None) -> None:
        """Sweep: end overdue heartbeats, send due ones and open missing connections. `room`: number of connections that
        may still be opened, None: unlimited."""
        for heartbeat in list(self.heartbeats.values()):
            if now >= heartbeat.deadline:
                heartbeat.end(is_good=False)
        pool = self._pool
        if not limits.warm or pool.idle_connections.limit < JITTER_FLOOR:
            return
        used = pool.leased - len(self.heartbeats)
        self._peak.note(used, now)
        ending = pool.idle_connections.ending(
            now, min(pool.idle_connections.limit / 2, 2 * MIN_IDLE_AGE + CONNECT_TIMES * pool.trip)
        )
        spare = pool.idle_connections.idle_probe is not None
        lasting = pool.standing - len(ending) - spare + pool.opening
        missing = max(used + limits.warm, self._peak.value) - lasting
        if limits.heartbeat is not None:
            together = max(
                1, (pool.idle + len(self.heartbeats)) // 2
            )  # keep half of them available for leases
            for upstream in ending[: max(0, missing)]:
                if len(self.heartbeats) < together:
                    self._send_heartbeat(upstream, limits, now)
                missing -= 1  # its heartbeat is sent now or by a later sweep
        for _ in range(missing if room is None else min(missing, room)):
            if not pool.open_ahead():
                return

    def stop(self) -> None:
        """End all heartbeats in flight as failed."""
        for heartbeat in list(self.heartbeats.values()):
            heartbeat.end(is_good=False)

    def heartbeat_ended(self, heartbeat: Heartbeat, *, is_good: bool) -> None:
        """Remove an ended heartbeat and count it if it failed (`HeartbeatOwner`)."""
        self.heartbeats.pop(heartbeat.upstream, None)
        if not is_good:
            self._pool.counts.heartbeats_failed += 1

    def _send_heartbeat(self, upstream: UpstreamConnection, limits: PoolLimits, now: float) -> None:
        method = limits.heartbeat_method
        request = heartbeat_request(self._pool.endpoint, method, limits.heartbeat or "/")
        self._pool.idle_connections.take(upstream)
        self._pool.counts.heartbeats += 1
        heartbeat = self.heartbeats[upstream] = Heartbeat(self, upstream, now + limits.connect_timeout)
        upstream.send(request, heartbeat, method.encode())
