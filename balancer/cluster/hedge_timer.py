"""Timer wheel for hedging: finds attempts that are late and endpoints that are silent.

There is no timer per request. Requests that become late at about the same instant share a bucket of `TICK` seconds, and
one timer waits for the first bucket. A hedge starts up to one `TICK` after its instant, plus one millisecond where the
event loop's timers are coarse. While requests are in flight, the same timer searches for silent endpoints; their
requests are hedged at once. While hedging is off, none of this exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from policies.endpoint.state import EndpointState
from policies.facts import OutcomeKind
from policies.overload.hedging import SEARCH_EVERY, TICK, Hedging
from policies.routing.assignment import Assignment

STALLED_S = 0.02
"""Seconds by which a search may come late. If it is later, this process was stalled, and answers may wait unread."""

MIN_INTERVAL_S = 0.001
"""Minimum seconds between two runs of the timer: the resolution of event loops."""


class HedgedRequest(Protocol):
    """A request that may get a second attempt."""

    def hedge(self) -> None:
        """Start a second attempt beside the first, if one is allowed."""


class WatchedAttempt(Protocol):
    """The first attempt at a request; `exchange` is None once it is settled or has lost."""

    @property
    def exchange(self) -> HedgedRequest | None: ...
    @property
    def assignment(self) -> Assignment: ...
    @property
    def first_byte_at(self) -> float | None: ...
    @property
    def has_failed(self) -> bool: ...
    @property
    def is_awaiting(self) -> bool: ...


class Loser(Protocol):
    """An attempt that has lost."""

    def check(self, now: float) -> None: ...
    def end(self, kind: OutcomeKind) -> None: ...


class HedgeTimer:
    """The timer wheel of attempts, and `losers`, the losing attempts that are still in flight."""

    def __init__(self, now: Callable[[], float], hedging: Hedging) -> None:
        self._now = now
        self.hedging = hedging
        self.losers: dict[Loser, None] = {}  # in the order in which they lost
        self._wheel: dict[int, list[WatchedAttempt]] = {}
        self._ticks: list[int] = []  # a heap of the wheel's keys
        self._by_state: dict[
            EndpointState, list[WatchedAttempt]
        ] = {}  # with answered ones, until the next search
        self._search_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, attempt: WatchedAttempt) -> None:
        """Schedule a check of a newly routed attempt for the instant at which it is late."""
        routed_at, state = attempt.assignment.routed_at, attempt.assignment.state
        self._by_state.setdefault(state, []).append(attempt)
        tick = int((routed_at + self.hedging.wait(state)) / TICK) + 1
        bucket = self._wheel.get(tick)
        if bucket is None:
            self._wheel[tick] = [attempt]
            heappush(self._ticks, tick)
        else:
            bucket.append(attempt)
        if self._search_at == inf:
            self._search_at = routed_at + SEARCH_EVERY
            self._set_timer(routed_at)

    def check(self, now: float) -> None:
        """Run due buckets, and enforce timeouts on losing attempts; called by the sweep."""
        self.turn(now)
        for loser in list(self.losers):
            loser.check(now)

    def turn(self, now: float) -> None:
        """Run all buckets that are due."""
        while self._ticks and self._ticks[0] * TICK <= now:
            for attempt in self._wheel.pop(heappop(self._ticks)):
                self._look(attempt, now)
        if self._search_at <= now:
            self._search(now)
        self._set_timer(now)

    def close(self) -> None:
        """Drop all scheduled checks, and end losing attempts as abandoned."""
        self._wheel.clear()
        self._ticks.clear()
        self._by_state.clear()
        self._search_at = inf
        self._set_timer(0.0)
        for loser in list(self.losers):
            loser.end(OutcomeKind.ABANDONED)

    def _look(self, attempt: WatchedAttempt, now: float) -> None:
        """Judge one attempt as on time or late, and hedge a late one. A failed attempt says nothing about latency."""
        state, first_byte_at = attempt.assignment.state, attempt.first_byte_at
        if attempt.has_failed:
            return
        if first_byte_at is not None:
            self.hedging.record(state, first_byte_at - attempt.assignment.routed_at, now)
        elif attempt.exchange is not None:
            self.hedging.record(state, None, now)
            attempt.exchange.hedge()

    def _search(self, now: float) -> None:
        """Hedge the requests in flight at silent endpoints, and search again later while any is in flight."""
        is_stalled = now - self._search_at > STALLED_S
        for state, attempts in list(self._by_state.items()):
            attempts[:] = [attempt for attempt in attempts if attempt.is_awaiting]
            if not attempts:
                del self._by_state[state]
        self._search_at = now + SEARCH_EVERY if self._by_state else inf
        if is_stalled:
            return
        for state in self.hedging.silent(self._by_state, now):
            sent_before = now - state.latency.mean  # those sent later may be in time
            for attempt in self._by_state[state]:
                is_late = attempt.assignment.routed_at < sent_before and self.hedging.has_budget
                if is_late and attempt.exchange is not None:
                    attempt.exchange.hedge()

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = min(self._search_at, self._ticks[0] * TICK if self._ticks else inf)
        if due < inf:
            delay = max(MIN_INTERVAL_S, due - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.turn(self._now())
