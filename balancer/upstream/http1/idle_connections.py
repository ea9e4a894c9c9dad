"""Connections that have been idle for longer than `MIN_IDLE_AGE`: which ones may still be leased, and which are closed.

No connection is leased past the idle-timeout estimate. Of those that pass it, one stays open as an idle-timeout probe:
it is never leased, and the age at which the worker closes it shows whether the estimate still holds. Every connection
here has been idle for longer than those in `ConnectionPool._idle`.
"""

from __future__ import annotations

from collections.abc import Callable

from balancer.upstream.http1.connection import UpstreamConnection
from balancer.upstream.http1.idle_timeout import ESTIMATE_INTERVAL, MIN_IDLE_AGE, IdleTimeout


class IdleConnections:
    """Idle connections of one endpoint. `limit` and `strict_limit`: maximum idle time in seconds for requests that may
    be retried and for those that may not."""

    def __init__(self, idle_timeout: IdleTimeout, now: Callable[[], float], limit: float) -> None:
        self.idle_timeout = idle_timeout
        self.limit = self.strict_limit = limit
        self.idle_probe: UpstreamConnection | None = None
        self._now = now
        self._judged_at = now()
        self._lost_at, self._lost_age = -MIN_IDLE_AGE, 0.0
        self._leases = 0  # leases of connections in here
        self._young = 0  # leases before `MIN_IDLE_AGE` that are reported to the estimate
        self._waiting: dict[UpstreamConnection, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._waiting) + (self.idle_probe is not None)

    @property
    def has_leasable(self) -> bool:
        """Whether a connection may be leased."""
        if not self._waiting:
            return False
        return self._now() - next(reversed(self._waiting)).idle_since <= self.limit

    def add(self, upstream: UpstreamConnection) -> None:
        """Add a connection that has been idle for `MIN_IDLE_AGE`; it must be younger than all others here."""
        self._waiting[upstream] = None
        if upstream.announced > 0:
            self.idle_timeout.announce(upstream.announced)

    def lease(self, limit: float) -> UpstreamConnection | None:
        """Lease the newest connection if it has been idle for at most `limit` seconds, else None."""
        if not self._waiting:
            return None
        upstream = self._waiting.popitem()[0]
        if self._now() - upstream.idle_since > limit:
            self._waiting[upstream] = None  # all others are older
            return None
        self._leases += 1
        self._record_open(upstream)
        return upstream

    def take(self, upstream: UpstreamConnection) -> None:
        """Remove this connection for a heartbeat."""
        del self._waiting[upstream]
        self._record_open(upstream)

    def ending(self, now: float, lead: float) -> list[UpstreamConnection]:
        """Connections that reach `limit` within `lead` seconds, oldest first."""
        found = []
        for upstream in self._waiting:
            if now - upstream.idle_since < self.limit - lead:
                break
            found.append(upstream)
        return found

    def discard(self, upstream: UpstreamConnection) -> bool:
        """Remove a closed connection; returns whether it was here."""
        if upstream is self.idle_probe:
            self.idle_probe = None
        elif upstream in self._waiting:
            del self._waiting[upstream]
        else:
            return False
        return True

    def close_oldest(self) -> None:
        """Close the connection that has been idle longest, the probe last. Must not be called when there is none."""
        oldest = next(iter(self._waiting), self.idle_probe)
        assert oldest is not None
        self.discard(oldest)
        self._close_idle(oldest, self._now())

    def expire(self, now: float, longest: float) -> None:
        """Close connections past `limit`, except for one idle-timeout probe, which is closed at `longest` idle
        seconds."""
        while self._waiting:
            oldest = next(iter(self._waiting))
            if now - oldest.idle_since < self.limit:
                break
            del self._waiting[oldest]
            if self.idle_probe is None and now - oldest.idle_since < longest:
                self.idle_probe = oldest
            else:
                self._close_idle(oldest, now)
        idle_probe = self.idle_probe
        if idle_probe is not None and now - idle_probe.idle_since >= longest:
            self.idle_probe = None
            self._close_idle(idle_probe, now)

    def lost(self, upstream: UpstreamConnection) -> float:
        """Record that the worker closed an idle connection of the pool; returns its idle time in seconds.

        Idle connections begin their idle time on the cached time of the last sweep, so the real one may be shorter by
        up to `MIN_IDLE_AGE`.
        """
        now = self._now()
        age = now - upstream.idle_since
        if now - self._lost_at >= MIN_IDLE_AGE:
            self._lost_at, self._lost_age = now, age
            self.idle_timeout.closed(max(0.0, age - MIN_IDLE_AGE))
        elif abs(age - self._lost_age) > MIN_IDLE_AGE:
            # Closed together at different ages: the worker restarts, so this is no further event. Those that became
            # idle together are one observation.
            self.idle_timeout.stood(age - MIN_IDLE_AGE)
        return age

    def died(self, upstream: UpstreamConnection) -> None:
        """Record that a leased connection turned out to be closed: it had been idle for too long."""
        has_rested = upstream.reused_idle_since == upstream.idle_since
        self.idle_timeout.died(upstream.reused_after - MIN_IDLE_AGE if has_rested else 0.0)

    def judge(self, now: float, leases: int) -> None:
        """Update the idle-timeout estimate, once per `ESTIMATE_INTERVAL`. `leases`: all reuses of the pool so far."""
        if now - self._judged_at >= ESTIMATE_INTERVAL:
            self._judged_at = now
            self.idle_timeout.stood_young(leases - self._leases - self._young)
            self._young = leases - self._leases
            self.idle_timeout.judge(now)

    def apply(self, longest: float, margin: float) -> None:
        """Set `limit` and `strict_limit` from the idle-timeout estimate and the configured maximum `longest`.

        `margin`: one round trip in seconds. The worker's close reaches the balancer, and a request reaches the worker,
        half a round trip late each.
        """
        idle_timeout = self.idle_timeout
        if not idle_timeout.risk:
            self.limit = self.strict_limit = longest
            return
        if not idle_timeout.is_learned:
            margin = 0.0
        self.limit = min(longest, idle_timeout.age - min(margin, idle_timeout.age / 2))
        self.strict_limit = min(longest, idle_timeout.strict_age - margin)

    def _record_open(self, upstream: UpstreamConnection) -> None:
        age = self._now() - upstream.idle_since
        self.idle_timeout.stood(age - MIN_IDLE_AGE)
        upstream.reused_after = age
        upstream.reused_idle_since = upstream.idle_since

    def _close_idle(self, upstream: UpstreamConnection, now: float) -> None:
        self.idle_timeout.stood(now - upstream.idle_since - MIN_IDLE_AGE)
        upstream.close()
