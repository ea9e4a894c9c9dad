"""Outlier detection (passive health checks): ejects endpoints that fail live traffic for a while.

A success costs nothing here. Consecutive failures are derived from totals that are kept anyway, and success rates from
the same totals once a second. An endpoint is not ejected while the others fail as well: then the fault is the
application's, and losing half the pool would not help.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from policies.routing.facts import Outcome, OutcomeKind

if TYPE_CHECKING:
    from policies.routing.endpoint_state import EndpointState

JITTER = 0.1
"""Relative jitter by which an ejection may be shorter, so that endpoints ejected together do not return together."""

WINDOW_STEPS = 6
"""Steps in which the window of the success rate moves on."""

PEERS_FAIL = 0.5
"""Success rate of the other endpoints below which consecutive failures do not count."""

FULL = 503
OVERLOADED_FOR = 1.0
"""Seconds without a success until status 503 counts. A worker whose queue is full rejects many in a row between two
that it takes; to eject it leaves more to the others, which are as full. A broken worker rejects for longer."""


@dataclass(frozen=True, slots=True)
class EjectionRules:
    """Rules of ejection. Durations in seconds; a threshold of 0 switches its rule off.

    `failures`: consecutive failures. `success_rate`: less than this part of the others' rate, over `window`, with at
    least `min_requests`. `latency`: waits this many times as long as the pool's median, see `latency_outliers.py`. The
    first ejection lasts `base_time`, the n-th in short succession n times as long, at most `max_time`. The values are
    Envoy's, but for the success rate, which is Finagle's.
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
    FAILURES = "failures"
    SUCCESS_RATE = "success rate"
    LATENCY = "latency"


class Record:
    """Outlier detection state of one endpoint.

    `until` is the end of the ejection, None unless it is ejected now; `cause` the reason of the last ejection; `count`
    the number of ejections. `rate` is (successes, requests) of the window. The present consecutive failures began at
    `failing_since`. `is_certain`: the endpoint is unreachable or its region lost.
    """

    __slots__ = (
        "_ok_at_failure",
        "_ok_at_return",
        "_returned_at",
        "_snapshots",
        "_streak",
        "cause",
        "count",
        "failing_since",
        "is_certain",
        "is_returned",
        "rate",
        "slow_for",
        "times",
        "until",
    )

    def __init__(self) -> None:
        self.until: float | None = None
        self.cause: Cause | None = None
        self.count = self.times = 0
        self.is_certain = False
        self.is_returned = False  # it was ejected before, and has returned
        self.rate = (0, 0)
        self.slow_for = 0  # ticks
        self._streak = self._ok_at_failure = self._ok_at_return = 0
        self._returned_at = self.failing_since = 0.0
        self._snapshots: deque[tuple[float, int, int]] = deque()

    @property
    def is_unreachable(self) -> bool:
        """Whether it is ejected because no connection could be made."""
        return self.until is not None and self.cause is Cause.UNREACHABLE

    def streak(self, ok: int, now: float) -> int:
        """Count a failure; return the consecutive failures. `ok` is the endpoint's total of successes."""
        if ok != self._ok_at_failure:
            self._ok_at_failure = ok
            self._streak = 0
        if not self._streak:
            self.failing_since = now
        self._streak += 1
        return self._streak

    def is_on_trial(self, ok: int) -> bool:
        """Whether it has returned from an ejection and has not succeeded since."""
        return self.is_returned and ok == self._ok_at_return

    def successes_since_return(self, ok: int) -> int:
        """Return how many of its `ok` successes came after the last ejection."""
        return ok - self._ok_at_return

    def eject(self, cause: Cause, now: float, rules: EjectionRules, rng: Random) -> None:
        """Eject, for longer each time; each `rules.base_time` since the last return reduces the multiplier by one."""
        forgiven = int(max(0.0, now - self._returned_at) / rules.base_time)
        self.times = max(0, self.times - forgiven) + 1
        self.count += 1
        self.cause = cause
        seconds = min(rules.max_time, rules.base_time * self.times)
        self.until = now + seconds * (1 - JITTER * rng.random())

    def end_ejection(self, ok: int, now: float) -> None:
        """End the ejection and reset all counts; the endpoint is on trial."""
        self.until = None
        self.is_returned = True
        self._returned_at = now
        self._ok_at_return = self._ok_at_failure = ok
        self._streak = self.slow_for = 0
        self._snapshots.clear()
        self.rate = (0, 0)

    def measure(self, ok: int, failed: int, now: float, window: float) -> None:
        """Take a snapshot of the totals; `rate` then covers the last `window` seconds, or up to one step more."""
        snapshots = self._snapshots
        if not snapshots or now - snapshots[-1][0] >= window / WINDOW_STEPS:
            snapshots.append((now, ok, failed))
        while len(snapshots) > 1 and snapshots[1][0] <= now - window:
            snapshots.popleft()
        _, ok_then, failed_then = snapshots[0]
        self.rate = (ok - ok_then, ok - ok_then + failed - failed_then)


class Ejection:
    """Decides which endpoint should be ejected; `ejection_limit.py` decides whether it may."""

    def __init__(self, rules: EjectionRules, rng: Random) -> None:
        self.rules = rules
        self._rng = rng
        self._successes = self._requests = 0  # of the pool, in the window, at the last tick

    def verdict_on_failure(self, state: EndpointState, outcome: Outcome) -> Cause | None:
        """Return the reason to eject `state` now that a request to it has failed, or None. O(1)."""
        rules, record = self.rules, state.record
        if not rules.failures:
            return None
        ok = state.successes
        streak = record.streak(ok, outcome.ended_at)
        if streak < rules.failures and not record.is_on_trial(ok):
            return None
        if outcome.kind is OutcomeKind.REFUSED:
            return Cause.UNREACHABLE
        if outcome.status == FULL and outcome.ended_at - record.failing_since < OVERLOADED_FOR:
            return None
        return Cause.FAILURES if self._others(record) >= PEERS_FAIL else None

    def measure(self, states: Sequence[EndpointState], now: float) -> None:
        """Update the success rates. Call about once a second."""
        self._successes = self._requests = 0
        for state in states:
            state.record.measure(state.successes, state.failures, now, self.rules.window)
            successes, requests = state.record.rate
            self._successes += successes
            self._requests += requests

    def is_failing(self, state: EndpointState) -> bool:
        """Whether its success rate is clearly below that of the others."""
        rules = self.rules
        successes, requests = state.record.rate
        if not rules.success_rate or requests < rules.min_requests:
            return False
        return successes < rules.success_rate * self._others(state.record) * requests

    def _others(self, record: Record) -> float:
        """Return the success rate of all others; 1 while they have too few requests."""
        successes, requests = record.rate
        successes, requests = self._successes - successes, self._requests - requests
        return successes / requests if requests >= self.rules.min_requests else 1.0

    def eject(self, state: EndpointState, cause: Cause, now: float, *, is_certain: bool) -> None:
        """Eject `state` by the present rules, without a check of the limits."""
        state.record.eject(cause, now, self.rules, self._rng)
        state.record.is_certain = is_certain


def end_ejection(state: EndpointState, now: float) -> None:
    """End the ejection of the endpoint."""
    state.record.end_ejection(state.successes, now)
    state.returned()
