"""Active health checks: an endpoint changes state after several consecutive checks with the other result.

While results contradict the state, checks are more frequent.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

JITTER = 0.1
"""Relative jitter of an interval, so that checks of many endpoints and many balancers drift apart, and no endpoint is
checked by all at the same instant."""


@dataclass(frozen=True, slots=True)
class CheckRules:
    """Settings of active checks: intervals in seconds, `rise` and `fall` in consecutive checks.

    The defaults are those of HAProxy, but for the steady interval: HAProxy checks every 2 s, and most of these checks
    give no new information."""

    interval: float = 5.0
    fast_interval: float = 2.0
    rise: int = 2
    fall: int = 3


def has_passed(status: int, expected: int | None) -> bool:
    """Return whether a check answered with `status` has passed; `expected` None: any from 200 to 399 passes."""
    return 200 <= status < 400 if expected is None else status == expected


class CheckState:
    """State of one endpoint as its active checks found it.

    `due_at` is when the next check is due, in seconds of the caller's clock. `last_fault` describes the last failure,
    recorded at `failed_at`. The very first check decides alone, as there is no earlier result.
    """

    def __init__(self, rules: CheckRules, rng: Random, now: float) -> None:
        self.rules = rules
        self._rng = rng
        self._against = 0  # consecutive checks that contradict `is_healthy`
        self.is_healthy = True
        self.passed = self.failed = 0
        self.last_fault: str | None = None
        self.failed_at = now
        self.due_at = now + rng.random() * rules.fast_interval

    @property
    def is_changing(self) -> bool:
        """Whether the last check contradicted the state, or the state is unhealthy; checks are then faster."""
        return self._against > 0 or not self.is_healthy

    def record(self, fault: str | None, now: float) -> bool:
        """Record a check that ended with `fault` (None: it passed). Return whether the state has changed."""
        is_first = not (self.passed or self.failed)
        if fault is None:
            self.passed += 1
        else:
            self.failed += 1
            self.last_fault, self.failed_at = fault, now
        has_changed = self._weigh(fault is None, is_first)
        self.due_at = now + self._jittered(
            self.rules.fast_interval if self.is_changing else self.rules.interval
        )
        return has_changed

    def check_soon(self, now: float) -> None:
        """Schedule the next check early, because another mechanism reports a change of the endpoint."""
        self.due_at = min(self.due_at, now + self._jittered(self.rules.fast_interval))

    def _weigh(self, has_passed: bool, is_first: bool) -> bool:
        if has_passed == self.is_healthy:
            self._against = 0
            return False
        self._against += 1
        needed = self.rules.fall if self.is_healthy else self.rules.rise
        if self._against < needed and not is_first:
            return False
        self.is_healthy = has_passed
        self._against = 0
        return True

    def _jittered(self, seconds: float) -> float:
        return seconds * (1 + JITTER * (2 * self._rng.random() - 1))
