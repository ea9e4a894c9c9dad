"""Connections that have been idle for longer than a moment: which may still be leased, and which are given up.

Rule of this file: nothing is leased past the horizon. Of what passes it, one stays as a lookout: it is never leased,
and its end tells whether the worker still closes where it did. Whoever is in here is older than whoever is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from balancer.upstream.connection import UpstreamConnection
from balancer.upstream.idle_timeout import REST, IdleTimeout

JUDGED_EVERY: Final = 1.0
"""Seconds between two judgements of a horizon."""


class IdleConnections:
    """One endpoint's. `limit` and `strict_limit` are the greatest idle ages, in seconds, for requests that may be
    repeated and that may not."""

    def __init__(self, horizon: IdleTimeout, now: Callable[[], float], limit: float) -> None:
        self.horizon = horizon
        self.limit = self.strict_limit = limit
        self.lookout: UpstreamConnection | None = None
        self._now = now
        self._judged_at = now()
        self._lost_at = -REST
        self._leases = 0  # from here
        self._young = 0  # and before a rest, as far as the horizon has been told
        self._waiting: dict[UpstreamConnection, None] = {}  # the newest is last

    def __len__(self) -> int:
        return len(self._waiting) + (self.lookout is not None)

    @property
    def has_young(self) -> bool:
        """Whether there is one that may be leased."""
        if not self._waiting:
            return False
        return self._now() - next(reversed(self._waiting)).idle_since <= self.limit

    def add(self, upstream: UpstreamConnection) -> None:
        """It is older than a moment now, and younger than all that are here."""
        self._waiting[upstream] = None
        if upstream.announced > 0:
            self.horizon.announce(upstream.announced)

    def lease(self, limit: float) -> UpstreamConnection | None:
        """The newest, if it is no older than so many seconds."""
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
        """This one, for a use of our own."""
        del self._waiting[upstream]
        self._note_stood(upstream)

    def ending(self, now: float, lead: float) -> list[UpstreamConnection]:
        """Those that will be past the limit within `lead` seconds, the oldest first."""
        found = []
        for upstream in self._waiting:
            if now - upstream.idle_since < self.limit - lead:
                break
            found.append(upstream)
        return found

    def discard(self, upstream: UpstreamConnection) -> bool:
        """It has closed. Returns whether it was here."""
        if upstream is self.lookout:
            self.lookout = None
        elif upstream in self._waiting:
            del self._waiting[upstream]
        else:
            return False
        return True

    def close_oldest(self) -> None:
        """Give up the one that has waited longest. Not to be called when there is none."""
        oldest = self.lookout if self.lookout is not None else next(iter(self._waiting))
        self.discard(oldest)
        self._give_up(oldest, self._now())

    def expire(self, now: float, longest: float) -> None:
        """Give up what is past the limit, but for a lookout, which may grow `longest` seconds old."""
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
        """The worker has closed one that was idle, here or not yet. Returns its age, in seconds: that of the last sweep
        before it became so, and it may be younger by a `REST`."""
        now = self._now()
        age = now - upstream.idle_since
        if now - self._lost_at < REST:
            self.horizon.stood(
                age - REST
            )  # they go together: it restarts, or they were idle together; that says no more
        else:
            self._lost_at = now
            self.horizon.closed(max(0.0, age - REST))
        return age

    def died(self, upstream: UpstreamConnection) -> None:
        """One that was leased was gone: it had been idle for too long, or as good as."""
        has_rested = upstream.rested_since == upstream.idle_since
        self.horizon.died(upstream.rested_for - REST if has_rested else 0.0)

    def judge(self, now: float, leases: int) -> None:
        """Every second: `leases` there have been, here and before a rest."""
        if now - self._judged_at >= JUDGED_EVERY:
            self._judged_at = now
            self.horizon.stood_young(leases - self._leases - self._young)
            self._young = leases - self._leases
            self.horizon.judge(now)

    def go_by(self, longest: float, margin: float) -> None:
        """Take the limits from the horizon. What the worker closes is known here, and a request known there, half a
        round trip late each: `margin` is the whole of it, in seconds."""
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
