"""Adaptive concurrency limit of an endpoint, from its latency: Gradient2.

No I/O, and time is an argument; one `record` per success of a few float operations, and all else once per window.

A window's mean latency, `short`, is compared with `long`, the latency without queueing:

    g = clamp(tolerance · long / short, 0.5, 1)          1: latency is as it should be
    limit = 0.8 · limit + 0.2 · (g · limit + headroom)   headroom: 4 or the root of the limit, whichever is more

(Netflix, concurrency-limits, `Gradient2Limit`.) The limit moves only when it was in use: otherwise the window says
nothing about it. With c slots it settles near tolerance · c + headroom, so that no slot is ever idle.

Two things differ from Netflix. There `long` is a slow mean of everything: under a lasting flood such a mean learns the
queue that the limit itself allows, takes it for normal, and the limit runs away (simulated, 8 slots at 1.5 times their
capacity: from 20 to 100 within 20 minutes, and on). Here it learns from windows in which the limit was not in use, and
from probe windows: every `PROBE_WINDOW_EVERY` seconds of full use the limit is halved for one window, so that the queue
drains, and what is sent then shows the latency without it (simulated, the same: 13–18). And until g first falls below
1 the limit grows by half per window, as TCP slow start: at 0.8 per second a hundred would take two minutes.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Final, NamedTuple

from policies.facts import Outcome, OutcomeKind

_OK: Final = OutcomeKind.OK
_TIMEOUT: Final = OutcomeKind.TIMEOUT

WINDOW: Final = 1.0
"""Least length of a window in seconds; twice the latency where that is more, so that each shows the effect of the last
change."""

MIN_SAMPLES: Final = 10
"""Samples that make a mean; a window lasts until it has them."""

SMOOTHING: Final = 0.2
LEAST_GRADIENT: Final = 0.5
HEADROOM: Final = 4.0
START_GROWTH: Final = 1.5

PROBE_WINDOW_EVERY: Final = 30.0
"""Seconds of full use between two probe windows: at most a thirtieth of the time is spent below the limit."""

USUAL_WEIGHT: Final = 0.2
"""Weight in `long` of a window in which the limit was not in use: they come every second."""

LOOK_WEIGHT: Final = 0.5
"""Weight in `long` of a probe window: they are rare, and a `long` that is too small keeps the limit too small until the
next."""


class ConcurrencyRules(NamedTuple):
    """Rules of adaptive concurrency limits.

    `initial`, `minimum` and `maximum` are requests in flight; `tolerance` is the accepted multiple of the latency
    without queueing."""

    initial: int = 20
    minimum: int = 4
    maximum: int = 1000
    tolerance: float = 1.5


class Concurrency:
    """Adaptive limit of one endpoint. `long` and `short` are in seconds; `inf` before the first window."""

    def __init__(self, rules: ConcurrencyRules) -> None:
        self.rules = rules
        self._estimate = float(rules.initial)
        self.limit = rules.initial
        self.long = self.short = inf
        self._slow_start_is_over = self._is_probe_window = False
        self._looked_at = -inf
        self._ends_at = inf
        self._sum = 0.0
        self._count = self._peak = 0

    def learn(self, outcome: Outcome, ahead: int) -> bool:
        """Record the outcome of a request that was sent behind `ahead` others; return whether `limit` may have changed.

        A success or a timeout counts with its latency to the first byte; a timeout before that with its duration, a
        lower bound of its latency.
        Other failures are ignored: they are fast, and would make a failing endpoint look idle.
        """
        kind, first_byte_at = outcome.kind, outcome.first_byte_at
        if kind is not _OK and kind is not _TIMEOUT:
            return False
        if first_byte_at is None:
            if kind is _OK:
                return False
            first_byte_at = outcome.ended_at
        return self.record(first_byte_at - outcome.sent_at, ahead, outcome.ended_at)

    def record(self, latency: float, ahead: int, now: float) -> bool:
        """Record a `latency` in seconds of a request sent behind `ahead` others; return as `learn` does."""
        if self._is_probe_window and ahead >= self.limit:
            return False  # sent before the probe window began: it has waited in the queue
        if not self._count and self._ends_at == inf:
            self._ends_at = now + WINDOW  # the first responses alone would be the fastest
        self._sum += latency
        self._count += 1
        if ahead >= self._peak:
            self._peak = ahead + 1
        if now < self._ends_at or self._count < MIN_SAMPLES:
            return False
        self._close_window(now)
        return True

    def refused(self, share: float) -> None:
        """Note that requests were refused from a `share` of the limit on: it counts as in use if so much of it was."""
        if share * self.limit <= self._peak < self.limit:
            self._peak = self.limit

    def _close_window(self, now: float) -> None:
        is_first = self.short == inf
        self.short = self._sum / self._count
        moves = self._peak >= self.limit and not self._is_probe_window
        if is_first or not moves:
            weight = LOOK_WEIGHT if self._is_probe_window else USUAL_WEIGHT
            self.long = self.short if self.long == inf else self.long + weight * (self.short - self.long)
        if moves:
            self._adjust()
        else:
            self._looked_at = now
        self._is_probe_window = moves and now - self._looked_at >= PROBE_WINDOW_EVERY
        self._open_window(now)

    def _adjust(self) -> None:
        rules, estimate = self.rules, self._estimate
        gradient = max(LEAST_GRADIENT, min(1.0, rules.tolerance * self.long / self.short))
        if gradient < 1.0:
            self._slow_start_is_over = True
        if self._slow_start_is_over:
            wanted = gradient * estimate + max(HEADROOM, sqrt(estimate))
            estimate += SMOOTHING * (wanted - estimate)
        else:
            estimate *= START_GROWTH
        self._estimate = max(float(rules.minimum), min(float(rules.maximum), estimate))

    def _open_window(self, now: float) -> None:
        limit = self._estimate / 2 if self._is_probe_window else self._estimate
        self.limit = max(self.rules.minimum, int(limit))
        self._ends_at = now + max(WINDOW, 2.0 * self.short)
        self._sum = 0.0
        self._count = self._peak = 0
