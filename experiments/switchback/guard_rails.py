"""Guard rails: limits beyond which the initial policy is restored. Pure.

A rail is checked over the last seconds as soon as there are enough requests, also within the wash-out, because harm to
users must not wait for a proper measurement.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from experiments.errors import ExperimentError
from experiments.switchback.readings import MetricsReading, MetricsWindow, between


class RailBroken(ExperimentError):
    """A guard rail was broken and the initial policy was restored."""

    exit_code = 1


MIN_REQUESTS = 100
"""Least requests to check a rail: below, p99 is a single request."""

TOLERATED_RATIO = 2.0
"""Default limit on p99, as a multiple of the p99 before."""

MORE_ERRORS = 0.02
"""Default limit on the increase of the error share."""


@dataclass(frozen=True, slots=True)
class Rails:
    """Limits: `p99` in seconds, `errors` as a share (0..1) of requests, over `seconds`."""

    p99: float
    errors: float
    seconds: float = 10.0

    @classmethod
    def after(cls, before: MetricsWindow, p99: float | None, errors: float | None) -> Rails:
        """The given limits, or defaults relative to the window before."""
        return cls(
            TOLERATED_RATIO * before.quantile(0.99) if p99 is None else p99,
            min(1.0, before.error_share + MORE_ERRORS) if errors is None else errors,
        )

    def broken_by(self, window: MetricsWindow) -> str | None:
        """The broken rail as text; None if none is broken or too little is known."""
        if window.requests < MIN_REQUESTS:
            return None
        if window.error_share > self.errors:
            return f"{window.error_share:.1%} of requests failed, more than {self.errors:.1%}"
        if not window.answered:
            return f"none of {window.requests} requests was answered in {window.seconds:.0f} s"
        p99 = window.quantile(0.99)
        if window.answered >= MIN_REQUESTS and p99 > self.p99:
            return f"p99 rose to {p99 * 1e3:.0f} ms, more than {self.p99 * 1e3:.0f} ms"
        return None


class Watch:
    """Sliding window of readings under one policy."""

    def __init__(self, rails: Rails) -> None:
        self._rails = rails
        self._readings: deque[MetricsReading] = deque()

    def broken_by(self, reading: MetricsReading) -> str | None:
        """Add a reading; returns the broken rail as text, if any."""
        readings = self._readings
        readings.append(reading)
        while len(readings) > 2 and readings[1].at <= reading.at - self._rails.seconds:
            readings.popleft()
        return self._rails.broken_by(between(readings[0], reading))
