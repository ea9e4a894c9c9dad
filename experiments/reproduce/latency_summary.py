"""Summary of latencies by their percentiles, mean and deviation. Pure; from raw samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np


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
