"""Summaries of latencies, and the median with a confidence interval. Pure; from raw samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

import numpy as np

RESAMPLES = 2000


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the median, by percentile bootstrap with a fixed seed."""
    rng = np.random.default_rng(1)
    drawn = rng.choice(np.array(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)


def median_ms(seconds: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median and its interval, in milliseconds."""
    millis = [1e3 * one for one in seconds]
    return median(millis), interval(millis)


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """`rate` in requests per second, the others in milliseconds."""

    rate: float
    min: float
    p50: float
    p75: float
    p95: float
    p99: float
    max: float
    mean: float
    sd: float

    def scaled(self, time_scale: float) -> LatencySummary:
        """Undo time compression: `time_scale` is the measured seconds per second."""
        times: dict[str, Any] = {name: getattr(self, name) / time_scale for name in SUMMARY}
        return replace(self, **times | {"rate": self.rate * time_scale})

    def texts(self) -> list[str]:
        """All values, with one decimal below a hundred."""
        values = (getattr(self, name) for name in SUMMARY)
        return [f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in values]


SUMMARY = tuple(field.name for field in fields(LatencySummary))
SUMMARY_HEADS = tuple("req/s" if name == "rate" else name for name in SUMMARY)


def summary_of(seconds: Sequence[float], span: float) -> LatencySummary:
    """Summary of at least one latency in seconds, over `span` seconds."""
    taken = np.array(seconds) * 1e3
    ranks = np.percentile(taken, [0, 50, 75, 95, 99, 100], method="inverted_cdf")
    least, p50, p75, p95, p99, most = map(float, ranks)
    rate = len(taken) / span if span > 0 else 0.0
    return LatencySummary(rate, least, p50, p75, p95, p99, most, float(taken.mean()), float(taken.std()))
