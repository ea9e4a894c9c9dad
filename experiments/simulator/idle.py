"""Idle connections of one balancer to one worker, and for how long they are trusted.

It follows the balancer's pool (`balancer/upstream/idle_connections.py`) with the same idle-timeout estimate: an unknown
worker is trusted for a few seconds, and the end of one connection that is kept beyond the estimate extends it. The pool
sweeps four times a second; the simulator looks when a connection is needed. A close by the worker is known at once, so
the race of a request with a close does not occur.
"""

from __future__ import annotations

from math import inf
from typing import Final

from balancer.upstream.idle_timeout import REST, IdleTimeout, IdleTimeoutRules

JUDGED_EVERY: Final = 1.0
"""Seconds between two judgements of the horizon."""

NONE: Final = -inf


class Idle:
    """Told by since when they have been idle, the newest last. `longest`: seconds for which one is kept at most,
    `keeps` those after which the worker closes one, `margin` a round trip. `limit` is the age up to which one may be
    used."""

    def __init__(self, longest: float, rules: IdleTimeoutRules, now: float) -> None:
        self.horizon = IdleTimeout(rules, now)
        self.longest = longest
        self.keeps = inf
        self.margin = 0.0
        self.limit = 0.0
        self._since: list[float] = []
        self._lookout = NONE
        self._looked_at = self._judged_at = now
        self._go_by()

    def relink(self, keeps: float, margin: float) -> None:
        """The link, or the worker, is another than before."""
        self.keeps, self.margin = keeps, margin
        self._go_by()

    def add(self, now: float) -> None:
        """One more."""
        self._since.append(now)

    def clear(self) -> None:
        """All are gone, and nothing is learned from it: the worker has ended."""
        self._since.clear()
        self._lookout = NONE

    def is_warm(self, now: float) -> bool:
        """Whether there is one that may be used."""
        since = self._since
        if not since:
            return False
        if now - since[-1] < REST:
            return True
        self._look(now)
        return bool(since) and now - since[-1] <= self.limit

    def lease(self, now: float) -> bool:
        """Use the newest, if there is one that may be used."""
        if not self.is_warm(now):
            return False
        age = now - self._since.pop()
        if age >= REST:
            self.horizon.stood(age - REST)
        return True

    def _look(self, now: float) -> None:
        """As a sweep of the pool."""
        if now - self._looked_at < REST:
            return
        self._looked_at = now
        self._end_lookout(now)
        if self.keeps <= self.limit:
            self._end_closed(now)
        self._expire(now)
        if now - self._judged_at >= JUDGED_EVERY:
            self._judged_at = now
            self.horizon.judge(now)
            self._go_by()

    def _end_lookout(self, now: float) -> None:
        """It has grown as old as one may, or the worker has closed it."""
        if self._lookout == NONE or now - self._lookout < min(self.longest, self.keeps):
            return
        self._lookout = NONE
        if self.keeps < self.longest:
            self.horizon.closed(max(0.0, self.keeps - REST))
        else:
            self.horizon.stood(self.longest - REST)

    def _end_closed(self, now: float) -> None:
        """The worker closes them before the horizon. Those that go at once say no more than one."""
        since, first = self._since, 0
        while first < len(since) and now - since[first] >= self.keeps:
            first += 1
        if first:
            self.horizon.closed(max(0.0, self.keeps - REST))
            del since[:first]

    def _expire(self, now: float) -> None:
        """Of what is past the horizon one stays as a lookout."""
        since, first = self._since, 0
        while first < len(since) and now - since[first] > self.limit:
            if self._lookout == NONE:
                self._lookout = since[first]
            else:
                self.horizon.stood(max(0.0, self.limit - REST))
            first += 1
        if first:
            del since[:first]
            self._end_lookout(now)

    def _go_by(self) -> None:
        horizon = self.horizon
        if not horizon.rules.risk:
            self.limit = min(self.longest, self.keeps - self.margin)
            return
        margin = self.margin if horizon.is_learned else 0.0
        self.limit = min(self.longest, horizon.age - min(margin, horizon.age / 2))
