"""Connections that have been idle for longer than `REST`: which ones may still be leased, and which are closed.

No connection is leased past the idle-timeout estimate. Of those that pass it, one stays open as an idle-timeout probe:
it is never leased, and the age at which the worker closes it shows whether the estimate still holds. Every connection
here has been idle for longer than those in `Pool._idle`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from balancer.upstream.connection import UpstreamConnection
from balancer.upstream.idle_timeout import REST, IdleTimeout

JUDGED_EVERY: Final = 1.0
"""Seconds between two updates of the idle-timeout estimate."""


class IdleConnections:
    """Idle connections of one endpoint. `limit` and `strict_limit`: maximum idle time in seconds for requests that may
    be retried and for those that may not."""

    def __init__(self, horizon: IdleTimeout, now: Callable[[], float], limit: float) -> None:
        self.horizon = horizon
        self.limit = self.strict_limit = limit
        self.lookout: UpstreamConnection | None = None
        self._now = now
        self._judged_at = now()
        self._lost_at = -REST
        self._leases = 0  # leases of connections in here
        self._young = 0  # leases before `REST` that are reported to the estimate
        self._waiting: dict[UpstreamConnection, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._waiting) + (self.lookout is not None)

    @property
    def has_young(self) -> bool:
        """Whether a connection may be leased."""
        if not self._waiting:
            return False
        return self._now() - next(reversed(self._waiting)).idle_since <= self.limit

    def add(self, upstream: UpstreamConnection) -> None:
        """Add a connection that has been idle for `REST`; it must be younger than all others here."""
        self._waiting[upstream] = None
        if upstream.announced > 0:
            self.horizon.announce(upstream.announced)

    def lease(self, limit: float) -> UpstreamConnection | None:
        """Lease the newest connection if it has been idle for at most `limit` seconds, else None."""
        if not self._waiting:
            return None
        upstream = self._waiting.popitem()[0]
        if self._now() - upstream.idle_since > limit:
            self._waiting[upstream] = None  # all others are older
            return None
        self._leases += 1
        self._note_stood(upstream)
        return upstream

    def take(self, upstream: UpstreamConnection) -> None:
        """Remove this connection for a heartbeat."""
        del self._waiting[upstream]
        self._note_stood(upstream)

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
        if upstream is self.lookout:
            self.lookout = None
        elif upstream in self._waiting:
            del self._waiting[upstream]
        else:
            return False
        return True

    def close_oldest(self) -> None:
        """Close the connection that has been idle longest. Must not be called when there is none."""
        oldest = self.lookout if self.lookout is not None else next(iter(self._waiting))
        self.discard(oldest)
        self._give_up(oldest, self._now())

    def expire(self, now: float, longest: float) -> None:
        """Close connections past `limit`, except for one idle-timeout probe, which is closed at `longest` idle
        seconds."""
        while self._waiting:
            oldest = next(iter(self._waiting))
            if now - oldest.idle_since < self.limit:
                break
            del self._waiting[oldest]
            if self.lookout is None and now - oldest.idle_since < longest:
                self.lookout = oldest
            else:
                self._give_up(oldest, now)
        lookout = self.lookout
        if lookout is not None and now - lookout.idle_since >= longest:
            self.lookout = None
            self._give_up(lookout, now)

    def lost(self, upstream: UpstreamConnection) -> float:
        """Record that the worker closed an idle connection, here or in `Pool._idle`; returns its idle time in seconds.

        Idle connections begin their idle time on the cached time of the last sweep, so the real one may be shorter by
        up to `REST`.
        """
        now = self._now()
        age = now - upstream.idle_since
        if now - self._lost_at < REST:
            # Closed together: the worker restarts, or they became idle together, so this is no further evidence.
            self.horizon.stood(age - REST)
        else:
            self._lost_at = now
            self.horizon.closed(max(0.0, age - REST))
        return age

    def died(self, upstream: UpstreamConnection) -> None:
        """Record that a leased connection turned out to be closed: it had been idle for too long."""
        has_rested = upstream.rested_since == upstream.idle_since
        self.horizon.died(upstream.rested_for - REST if has_rested else 0.0)

    def judge(self, now: float, leases: int) -> None:
        """Update the idle-timeout estimate, once per `JUDGED_EVERY`. `leases`: all reuses so far, of the whole pool."""
        if now - self._judged_at >= JUDGED_EVERY:
            self._judged_at = now
            self.horizon.stood_young(leases - self._leases - self._young)
            self._young = leases - self._leases
            self.horizon.judge(now)

    def go_by(self, longest: float, margin: float) -> None:
        """Set `limit` and `strict_limit` from the idle-timeout estimate and the configured maximum `longest`.

        `margin`: one round trip in seconds. The worker's close reaches the balancer, and a request reaches the worker,
        half a round trip late each.
        """
        horizon = self.horizon
        if not horizon.rules.risk:
            self.limit = self.strict_limit = longest
            return
        if not horizon.is_learned:
            margin = 0.0
        self.limit = min(longest, horizon.age - min(margin, horizon.age / 2))
        self.strict_limit = min(longest, horizon.strict_age - margin)

    def _note_stood(self, upstream: UpstreamConnection) -> None:
        age = self._now() - upstream.idle_since
        self.horizon.stood(age - REST)
        upstream.rested_for = age
        upstream.rested_since = upstream.idle_since

    def _give_up(self, upstream: UpstreamConnection, now: float) -> None:
        self.horizon.stood(now - upstream.idle_since - REST)
        upstream.close()
