"""Ejection state of one endpoint, and the rules of ejection that `health/outlier_detection.py` applies."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from math import log
from random import Random

JITTER = 0.1
"""Relative jitter by which an ejection may be shorter, so that endpoints ejected together do not return together."""

BROKEN_FOR = 2.0
"""Least seconds of the second ejection in a row for broken connections or timeouts, doubled for each further one: an
endpoint that accepts connections and breaks each of them would otherwise return with every check."""

MOST_DOUBLINGS = 10
"""Doublings of BROKEN_FOR at most; the ejection is over before."""

CHANCE_PROBABILITY = 1e-6
"""Probability of consecutive failures below which they are no chance, at an endpoint that fails at random."""

MOST_AT_RANDOM = 0.5
"""Share of failures from which an endpoint does not fail at random, but fails."""

HISTORY_WEIGHT = 0.95
"""Factor by which earlier requests count less after consecutive failures, in the share of failures of an endpoint."""

LONGEST_RUN = 20
"""Consecutive successes that count in that share at most, so that a fault which has just begun shows in it."""

WINDOW_STEPS = 6
"""Steps in which the window of the success rate moves on."""


@dataclass(frozen=True, slots=True)
class EjectionRules:
    """Rules of ejection. Durations in seconds; a threshold of 0 switches its rule off.

    `failures`: consecutive failures. `success_rate`: less than this part of the others' rate, over `window`, with at
    least `min_requests`. `latency`: waits this many times as long as the cluster's median, see `outlier_detection.py`.
    The first ejection lasts `base_time`, the n-th in short succession n times as long, at most `max_time`. The values
    are Envoy's, but for the success rate, which is Finagle's.
    """

    failures: int = 5
    success_rate: float = 0.8
    window: float = 30.0
    min_requests: int = 5
    latency: float = 0.0
    base_time: float = 30.0
    max_time: float = 300.0


class Cause(Enum):
    """Reason for which outlier detection ejects an endpoint."""

    UNREACHABLE = "unreachable"  # repeated connection failures: a fact rather than an estimate
    CONNECTIONS = "connections"  # repeatedly refused or broken before an answer, not all of them refused
    TIMEOUTS = "timeouts"  # repeatedly no answer, in time or at all
    FAILURES = "failures"
    SUCCESS_RATE = "success rate"
    LATENCY = "latency"


CONSECUTIVE = (Cause.CONNECTIONS, Cause.TIMEOUTS, Cause.FAILURES)
"""Causes that are consecutive failures; UNREACHABLE, which is more certain, is not among them."""


class OutlierState:
    """Outlier detection state of one endpoint.

    `until` is the end of the ejection, None unless it is ejected now; a successful check may end it earlier, from
    `returns_from` on. `cause` is the reason of the last ejection; `count` the number of ejections, `times` how many of
    them followed each other closely. `rate` is (successes, requests) of the window. `ok_at_return`: successes before
    the last return. The present consecutive failures began at `failing_since`. `only_connections`: all of them were
    connections without an answer; `only_unanswered`: or timed out before one. `is_certain`: the endpoint is unreachable
    or its region lost. `is_excused`: failures since the last success do not count, the last at `excused_at`.
    `_failed` of `_ended` requests failed before the present consecutive failures.
    """

    def __init__(self) -> None:
        self.until: float | None = None
        self.cause: Cause | None = None
        self.count = self.times = 0
        self.is_certain = False
        self.is_returned = False  # it was ejected before, and has returned
        self.rate = (0, 0)
        self.slow_for = 0  # ticks
        self._streak = self._ok_at_failure = self.ok_at_return = 0
        self.only_connections = self.only_unanswered = True
        self._failed = self._ended = 0.0
        self._returned_at = self.failing_since = self.returns_from = self.excused_at = 0.0
        self.is_excused = False
        self._ok_at_excuse = 0
        self._snapshots: deque[tuple[float, int, int]] = deque()

    @property
    def is_unreachable(self) -> bool:
        """Whether it is ejected because no connection could be made."""
        return self.until is not None and self.cause is Cause.UNREACHABLE

    @property
    def ends_by_connect(self) -> bool:
        """Whether a successful check or connect ends the ejection, from `returns_from` on."""
        return self.until is not None and self.cause in (Cause.UNREACHABLE, Cause.CONNECTIONS)

    def ends_by_check(self, *, is_answered: bool) -> bool:
        """Whether a check ends the ejection, from `returns_from` on: one that was answered, or else a connect."""
        return self.ends_by_connect or (
            is_answered and self.until is not None and self.cause is Cause.TIMEOUTS
        )

    def is_due(self, now: float, *, is_common: bool) -> bool:
        """Whether the ejection ends. `is_common`: the others fail as well, which ends one that no check can end."""
        ends_early = is_common and not self.ends_by_check(is_answered=True)
        return self.until is not None and (ends_early or self.until <= now)

    def streak(self, ok: int, now: float, *, is_connection: bool, is_unanswered: bool) -> int:
        """Count a failure; return the consecutive failures. `ok` is the endpoint's total of successes.

        `is_connection`: the connection was refused, or broke before an answer; `is_unanswered`: or it timed out.
        """
        if ok != self._ok_at_failure:
            if self._streak:
                self._failed = HISTORY_WEIGHT * self._failed + self._streak
                self._ended = (
                    HISTORY_WEIGHT * self._ended + self._streak + min(LONGEST_RUN, ok - self._ok_at_failure)
                )
            self._ok_at_failure = ok
            self._streak = 0
        if not self._streak:
            self.failing_since = now
            self.only_connections = self.only_unanswered = True
        self.only_connections = self.only_connections and is_connection
        self.only_unanswered = self.only_unanswered and is_unanswered
        self._streak += 1
        return self._streak

    def exceeds_chance(self, streak: int) -> bool:
        """Whether so many consecutive failures are no chance where requests failed as often as here before."""
        share = self._failed / self._ended if self._ended else 0.0
        return not 0.0 < share < MOST_AT_RANDOM or streak * log(share) < log(CHANCE_PROBABILITY)

    def is_on_trial(self, ok: int) -> bool:
        """Whether it has returned from an ejection and has not succeeded since."""
        return self.is_returned and ok == self.ok_at_return

    def eject(self, cause: Cause, now: float, rules: EjectionRules, rng: Random) -> None:
        """Eject, for longer each time; each `rules.base_time` since the last return reduces the multiplier by one."""
        forgiven = int(max(0.0, now - self._returned_at) / rules.base_time)
        self.times = max(0, self.times - forgiven) + 1
        self.count += 1
        self.cause = cause
        seconds = min(rules.max_time, rules.base_time * self.times)
        self.until = now + seconds * (1 - JITTER * rng.random())
        self.returns_from = now
        if cause in (Cause.CONNECTIONS, Cause.TIMEOUTS) and self.times > 1:
            self.returns_from += BROKEN_FOR * 2.0 ** min(self.times - 2, MOST_DOUBLINGS)

    def end_ejection(self, ok: int, now: float) -> None:
        """End the ejection and reset all counts; the endpoint is on trial."""
        self.until = None
        self.is_returned = True
        self._returned_at = now
        self.ok_at_return = self._ok_at_failure = ok
        self._streak = self.slow_for = 0
        self._failed = self._ended = 0.0
        self.is_excused = False
        self.forget_rate()
        self.rate = (0, 0)

    def excuse(self, ok: int, now: float) -> None:
        """Note a failure that does not eject although it would alone: the next success forgets the rate."""
        self.is_excused, self._ok_at_excuse, self.excused_at = True, ok, now

    def forget_rate(self) -> None:
        """Begin the window of the success rate anew, at the next snapshot."""
        self._snapshots.clear()

    def measure(self, ok: int, failed: int, now: float, window: float) -> None:
        """Take a snapshot of the totals; `rate` then covers the last `window` seconds, or up to one step more."""
        if self.is_excused and ok != self._ok_at_excuse:
            self.is_excused = False
            self.forget_rate()
        snapshots = self._snapshots
        if not snapshots or now - snapshots[-1][0] >= window / WINDOW_STEPS:
            snapshots.append((now, ok, failed))
        while len(snapshots) > 1 and snapshots[1][0] <= now - window:
            snapshots.popleft()
        _, ok_then, failed_then = snapshots[0]
        self.rate = (ok - ok_then, ok - ok_then + failed - failed_then)
