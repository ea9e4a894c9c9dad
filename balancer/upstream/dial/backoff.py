"""Exponential backoff with jitter for connects to an endpoint whose connects keep failing.

After `FAILURES` consecutive failures, connections are opened one at a time with growing pauses, until a connect
succeeds. The pause doubles with each failure and is drawn from its upper half, so that balancers do not retry in step
(Brooker, "Exponential backoff and jitter"). Pure: the caller passes the time.
"""

from __future__ import annotations

from random import Random
from typing import Final

FAILURES: Final = 3
"""Consecutive failures that start the backoff. Fewer are treated as accidents and retried at once."""

MIN_PAUSE_S: Final = 0.1
"""First pause in seconds, before jitter."""


class Backoff:
    """Backoff state of one endpoint. `longest`: maximum pause in seconds, 0: no backoff. `failures`: consecutive failed
    connects, the last one at `failed_at`; both are also kept without a backoff."""

    def __init__(self, rng: Random, longest: float) -> None:
        self.longest = longest
        self._rng = rng
        self.failures = 0
        self.failed_at = 0.0
        self._until = 0.0

    @property
    def is_backing_off(self) -> bool:
        """Whether the backoff is active, so that connections are opened one at a time."""
        return self.failures >= FAILURES and self.longest > 0

    def may_try(self, opening: int, now: float) -> bool:
        """Whether another connection may be opened at `now` while `opening` connects are in progress."""
        return not self.is_backing_off or (opening == 0 and now >= self._until)

    def failed(self, now: float) -> None:
        """Record a failed connect and schedule the next attempt."""
        self.failures += 1
        self.failed_at = now
        if self.is_backing_off:
            doublings = min(self.failures - FAILURES, 30)
            self._until = now + min(self.longest, MIN_PAUSE_S * 2.0**doublings) * self._rng.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """Record a successful connect: ends the backoff."""
        self.failures = 0
