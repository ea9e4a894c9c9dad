"""Patience with an endpoint that cannot be connected to: one attempt at a time, and longer and longer pauses.

Rule of this file: pure and clocked. Trouble is several failures in a row, ended by the first success. The pause doubles
and is drawn from its upper half, so that not all units come back at once (Brooker, "Exponential backoff and jitter").
"""

from __future__ import annotations

from random import Random
from typing import Final

FAILURES: Final = 3
"""In a row, without a success between, before it is called trouble: one is an accident, and is retried at once."""

FIRST: Final = 0.1
"""Seconds of the first pause, before jitter."""


class Backoff:
    """One endpoint's. `longest` pause in seconds; 0: none is ever made."""

    def __init__(self, rng: Random, longest: float) -> None:
        self.longest = longest
        self._rng = rng
        self._failures = 0
        self._until = 0.0

    @property
    def is_in_trouble(self) -> bool:
        """Whether connections should be opened one at a time."""
        return self._failures >= FAILURES and self.longest > 0

    def may_try(self, opening: int, now: float) -> bool:
        """Whether one more may be opened while so many are being opened."""
        return not self.is_in_trouble or (opening == 0 and now >= self._until)

    def failed(self, now: float) -> None:
        """A connection could not be opened."""
        self._failures += 1
        if self.is_in_trouble:
            doublings = min(self._failures - FAILURES, 30)
            self._until = now + min(self.longest, FIRST * 2.0**doublings) * self._rng.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """One could."""
        self._failures = 0
