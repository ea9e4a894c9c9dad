"""Guard of a canary cluster: compares it with the other clusters of its split once a second.

Only the split's own requests count. Copies of mirrors, and requests of other routes to the same clusters, do not.
"""

from __future__ import annotations

from typing import Final

from balancer.errors import (
    ConnectionCut,
    DeadlinePassed,
    ForwardingError,
    NoEndpoint,
    PoolOverloaded,
    QueueFull,
    QueueTimeout,
    Shed,
    UnsupportedByTransport,
)
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange_state import ExchangeState
from balancer.exchange.observers import ExchangeObserver
from policies.facts import OutcomeKind
from policies.insight.version_guard import Tally, problem_of

PERIOD: Final = 1.0
"""Seconds between two comparisons."""

WINDOW: Final = 600.0
"""Seconds after which counts begin anew: a fault of today must not be diluted by the requests of a week."""

UNSERVED: Final = (
    *(NoEndpoint, PoolOverloaded, QueueFull, QueueTimeout, DeadlinePassed, Shed),
    UnsupportedByTransport,
)
"""Errors of requests that no endpoint of the cluster was there for, or none that takes them; other failures are those
of attempts."""


class TalliedRequest(ExchangeObserver):
    """Has the attempts at a request counted, or that no endpoint took it, or that its client left."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def on_attempt(self, exchange: ExchangeState, attempt: Attempt) -> None:
        attempt.tally = self._tally

    def on_end(self, exchange: ExchangeState, error: ForwardingError | None) -> None:
        attempt = exchange.last_attempt
        is_busy = attempt is not None and attempt.stated is not None and attempt.stated[0] is OutcomeKind.BUSY
        if isinstance(error, UNSERVED) or (error is None and is_busy):
            self._tally.unserved()
        elif isinstance(error, ConnectionCut):
            self._tally.left += 1


class CanaryGuard:
    """Guard of the cluster at place `canary` of `number` clusters, with a tally of each."""

    def __init__(self, number: int, canary: int) -> None:
        self._canary = canary
        self._began_at = self._next_at = 0.0
        self.tallies = [Tally() for _ in range(number)]

    def problem(self, now: float) -> str | None:
        """Return what is worse about the canary than about the others; None if nothing is, or it is not yet time."""
        if now < self._next_at:
            return None
        self._next_at = now + PERIOD
        self._began_at = self._began_at or now
        if now > self._began_at + WINDOW:
            self.tallies, self._began_at = [Tally() for _ in self.tallies], now
            return None
        rows = [tally.row for tally in self.tallies]
        canary = rows.pop(self._canary)
        return problem_of(canary, [*map(sum, zip(*rows, strict=True))])
