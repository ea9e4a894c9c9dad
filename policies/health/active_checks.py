"""What active checks say of an endpoint: healthy until several in a row speak against it, and back likewise.

Rule of this file: one bad answer is no illness, and one good answer no recovery. While it looks as if something
changed, the next look is sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

JITTER = 0.1
"""Part of an interval by which a check may come sooner or later: checks of many endpoints and many units drift
apart, and no endpoint is checked by all at the same instant."""


@dataclass(frozen=True, slots=True)
class CheckRules:
    """Intervals in seconds; `rise` and `fall` are checks in a row. The defaults are those of HAProxy, but for the
    steady interval: it checks every 2 s, and most of that says nothing new."""

    interval: float = 5.0
    fast_interval: float = 2.0
    rise: int = 2
    fall: int = 3


class Verdict:
    """What the checks of one endpoint amount to.

    `due_at` is when the next one is due, in seconds of the caller's clock. `last_fault` says in words what was wrong
    the last time. The very first check decides alone: before it nothing is known that it could contradict.
    """

    __slots__ = ("_against", "_rng", "due_at", "failed", "is_healthy", "last_fault", "passed", "rules")

    def __init__(self, rules: CheckRules, rng: Random, now: float) -> None:
        self.rules = rules
        self._rng = rng
        self._against = 0  # checks in a row that contradict `is_healthy`
        self.is_healthy = True
        self.passed = self.failed = 0
        self.last_fault: str | None = None
        self.due_at = now + rng.random() * rules.fast_interval

    @property
    def is_changing(self) -> bool:
        """Whether the last check contradicted the verdict, or the verdict is bad: nobody should be missed for longer
        than it takes to see that he is back."""
        return self._against > 0 or not self.is_healthy

    def record(self, fault: str | None, now: float) -> bool:
        """Count a check in that ended with `fault` (None: it passed). Returns whether the verdict has changed."""
        is_first = not (self.passed or self.failed)
        if fault is None:
            self.passed += 1
        else:
            self.failed += 1
            self.last_fault = fault
        has_changed = self._weigh(fault is None, is_first)
        self.due_at = now + self._interval()
        return has_changed

    def hasten(self, now: float) -> None:
        """Something else says that the endpoint has changed: the next check is soon."""
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

    def _interval(self) -> float:
        return self._jittered(self.rules.fast_interval if self.is_changing else self.rules.interval)

    def _jittered(self, seconds: float) -> float:
        return seconds * (1 + JITTER * (2 * self._rng.random() - 1))
