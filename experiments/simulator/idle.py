"""Idle connections of one balancer to one worker, and their idle-timeout estimate.

Follows the balancer's pool (`balancer/upstream/http1/idle_connections.py`) with the same estimate: connections to an
unknown worker are used for a few seconds of idleness, and one probe connection kept beyond the estimate extends it. The
pool sweeps four times a second; the simulator sweeps when a connection is needed. A close by the worker is known at
once, so the race of a request with a close does not occur.
"""

from __future__ import annotations

from math import inf
from typing import Final

from balancer.upstream.http1.idle_timeout import ESTIMATE_INTERVAL, MIN_IDLE_AGE, IdleTimeout

NONE: Final = -inf


class Idle:
    """Idle connections, stored by the instant since which they are idle, newest last.

    `longest` is the maximum idle time of the pool in seconds, `keeps` the worker's idle timeout, `margin` a round trip.
    `limit` is the age up to which a connection may be used, `strict_limit` that for a check, which is not repeated.
    """

    def __init__(self, longest: float, risk: float, now: float) -> None:
        self.horizon = IdleTimeout(risk, now)
        self.longest = longest
        self.keeps = inf
        self.margin = 0.0
        self.limit = self.strict_limit = 0.0
        self._since: list[float] = []
        self._probe_since = NONE
        self._looked_at = self._judged_at = now
        self._go_by()

    def relink(self, keeps: float, margin: float) -> None:
        """Update the worker's idle timeout and the round trip."""
        self.keeps, self.margin = keeps, margin
        self._go_by()

    def add(self, now: float) -> None:
        self._since.append(now)

    def clear(self) -> None:
        """Drop all connections without updating the estimate, because the worker has ended."""
        self._since.clear()
        self._probe_since = NONE

    def has_idle(self, now: float) -> bool:
        """Whether a usable idle connection exists."""
        since = self._since
        if not since:
            return False
        if now - since[-1] < MIN_IDLE_AGE:
            return True
        self._look(now)
        return bool(since) and now - since[-1] <= self.limit

    def lease(self, now: float) -> bool:
        """Take the newest connection if it is usable; returns whether one was taken."""
        if not self.has_idle(now):
            return False
        age = now - self._since.pop()
        if age >= MIN_IDLE_AGE:
            self.horizon.stood(age - MIN_IDLE_AGE)
        return True

    def lease_strict(self, now: float) -> bool:
        """Take the newest connection for a check, if it is certainly open; returns whether one was taken."""
        since, strict_limit = self._since, self.strict_limit
        if not self.has_idle(now):
            return False
        age = now - since[-1]
        if age > strict_limit or strict_limit < 2 * MIN_IDLE_AGE:
            return False
        return self.lease(now)

    def _look(self, now: float) -> None:
        """Sweep, as the pool does periodically."""
        if now - self._looked_at < MIN_IDLE_AGE:
            return
        self._looked_at = now
        self._end_lookout(now)
        if self.keeps <= self.limit:
            self._end_closed(now)
        self._expire(now)
        if now - self._judged_at >= ESTIMATE_INTERVAL:
            self._judged_at = now
            self.horizon.judge(now)
            self._go_by()

    def _end_lookout(self, now: float) -> None:
        """End the idle-timeout probe when it has reached the maximum age or the worker has closed it."""
        if self._probe_since == NONE or now - self._probe_since < min(self.longest, self.keeps):
            return
        self._probe_since = NONE
        if self.keeps < self.longest:
            self.horizon.closed(max(0.0, self.keeps - MIN_IDLE_AGE))
        else:
            self.horizon.stood(self.longest - MIN_IDLE_AGE)

    def _end_closed(self, now: float) -> None:
        """Remove connections that the worker closed before the estimate. Simultaneous closes count once."""
        since, first = self._since, 0
        while first < len(since) and now - since[first] >= self.keeps:
            first += 1
        if first:
            self.horizon.closed(max(0.0, self.keeps - MIN_IDLE_AGE))
            del since[:first]

    def _expire(self, now: float) -> None:
        """Remove connections older than the limit, keeping one as an idle-timeout probe."""
        since, first = self._since, 0
        while first < len(since) and now - since[first] > self.limit:
            if self._probe_since == NONE:
                self._probe_since = since[first]
            else:
                self.horizon.stood(max(0.0, self.limit - MIN_IDLE_AGE))
            first += 1
        if first:
            del since[:first]
            self._end_lookout(now)

    def _go_by(self) -> None:
        horizon = self.horizon
        if not horizon.risk:
            self.limit = self.strict_limit = min(self.longest, self.keeps - self.margin)
            return
        margin = self.margin if horizon.is_learned else 0.0
        self.limit = min(self.longest, horizon.age - min(margin, horizon.age / 2))
        self.strict_limit = min(self.longest, horizon.strict_age - margin)
