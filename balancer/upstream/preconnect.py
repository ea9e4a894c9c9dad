"""Connections that are kept ready ahead of need: opened before, and kept alive by heartbeats.

Rule of this file: no task and no timer; the sweep opens what is missing and sends what is due. A floor is asked for, so
many ready beside those in use; it follows the load, up to the most that were in use of late. What is about to pass the
horizon does not count: its successor is opened, or its heartbeat sent, while it still serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from balancer.upstream.heartbeat import Heartbeat, heartbeat_request
from balancer.upstream.idle_timeout import REST
from balancer.upstream.peak import Peak

if TYPE_CHECKING:
    from balancer.upstream.connection import UpstreamConnection
    from balancer.upstream.pool import Pool
    from balancer.upstream.pool_limits import PoolLimits

TRIPS: Final = 3
"""Times that connecting took: enough to open a successor, or to have a heartbeat answered."""


SHORTEST: Final = 1.0
"""Seconds of a horizon below which a connection is gone before it is of use: none is opened ahead."""


class Preconnect:
    """One endpoint's. `beating` holds the heartbeats under way, by their connections."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._peak = Peak()
        self.beating: dict[UpstreamConnection, Heartbeat] = {}

    def look(self, now: float, limits: PoolLimits, room: int | None) -> None:
        """The sweep: `room` is how many more connections there may be, None: any number."""
        for heartbeat in list(self.beating.values()):
            if now >= heartbeat.deadline:
                heartbeat.end(is_good=False)
        pool = self._pool
        if not limits.warm or pool.rested.limit < SHORTEST:
            return
        used = pool.leased - len(self.beating)
        self._peak.note(used, now)
        ending = pool.rested.ending(now, min(pool.rested.limit / 2, 2 * REST + TRIPS * pool.trip))
        spare = pool.rested.lookout is not None
        lasting = pool.standing - len(ending) - spare + pool.opening
        missing = max(used + limits.warm, self._peak.value) - lasting
        if limits.heartbeat is not None:
            together = max(1, (pool.idle + len(self.beating)) // 2)  # the others serve meanwhile
            for upstream in ending[: max(0, missing)]:
                if len(self.beating) < together:
                    self._beat(upstream, limits, now)
                missing -= 1  # its turn comes
        for _ in range(missing if room is None else min(missing, room)):
            if not pool.open_ahead():
                return

    def stop(self) -> None:
        """Wait for no answer any more."""
        for heartbeat in list(self.beating.values()):
            heartbeat.end(is_good=False)

    def heartbeat_ended(self, heartbeat: Heartbeat, *, is_good: bool) -> None:
        """HeartbeatOwner."""
        self.beating.pop(heartbeat.upstream, None)
        if not is_good:
            self._pool.counts.heartbeats_failed += 1

    def _beat(self, upstream: UpstreamConnection, limits: PoolLimits, now: float) -> None:
        method = limits.heartbeat_method
        request = heartbeat_request(self._pool.endpoint, method, limits.heartbeat or "/")
        self._pool.rested.take(upstream)
        self._pool.counts.heartbeats += 1
        heartbeat = self.beating[upstream] = Heartbeat(self, upstream, now + limits.connect_timeout)
        upstream.send(request, heartbeat, method.encode())
