"""How bad it may get before the policy that was in force is put back.

Rule of this file: pure. A rail is judged over the last seconds, as soon as there is enough to judge, and within the
wash-out too: what harms users need not wait until it is measured properly.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from experiments.live.readings import Reading, Window, between

JUDGED = 100
"""Requests without which nothing is judged: their p99 is the opinion of one."""

TOLERATED = 2.0
"""Times the p99 that was before, where none is given."""

MORE_ERRORS = 0.02
"""Share of requests that may fail beyond what was before, where none is given."""


@dataclass(frozen=True, slots=True)
class Rails:
    """`p99` in seconds, `errors` as a share (0..1) of requests, over `seconds`."""

    p99: float
    errors: float
    seconds: float = 10.0

    @classmethod
    def beside(cls, before: Window, p99: float | None, errors: float | None) -> Rails:
        """Those that were asked for, else in proportion to what was before."""
        return cls(
            TOLERATED * before.quantile(0.99) if p99 is None else p99,
            min(1.0, before.error_share + MORE_ERRORS) if errors is None else errors,
        )

    def broken_by(self, window: Window) -> str | None:
        """What is wrong, in words; None: nothing, or not enough is known."""
        if window.requests < JUDGED:
            return None
        if window.error_share > self.errors:
            return f"{window.error_share:.1%} of requests failed, more than {self.errors:.1%}"
        if not window.answered:
            return f"none of {window.requests} requests was answered in {window.seconds:.0f} s"
        p99 = window.quantile(0.99)
        if window.answered >= JUDGED and p99 > self.p99:
            return f"p99 rose to {p99 * 1e3:.0f} ms, more than {self.p99 * 1e3:.0f} ms"
        return None


class Watch:
    """The last readings under one policy."""

    def __init__(self, rails: Rails) -> None:
        self._rails = rails
        self._readings: deque[Reading] = deque()

    def look(self, reading: Reading) -> str | None:
        """One more reading: which rail it breaks, if it does."""
        readings = self._readings
        readings.append(reading)
        while len(readings) > 2 and readings[1].at <= reading.at - self._rails.seconds:
            readings.popleft()
        return self._rails.broken_by(between(readings[0], reading))
