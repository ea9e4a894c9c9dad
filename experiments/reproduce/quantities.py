"""Gatling-style summary statistics of latencies. Pure; percentiles from raw samples, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.table import Table

NAMES = {
    "rate": "req/s",
    "least": "min",
    "p50": "p50",
    "p75": "p75",
    "p95": "p95",
    "p99": "p99",
    "most": "max",
    "mean": "mean",
    "sd": "sd",
}


@dataclass(frozen=True, slots=True)
class Quantities:
    """`rate` in requests per second, the others in milliseconds."""

    rate: float
    least: float
    p50: float
    p75: float
    p95: float
    p99: float
    most: float
    mean: float
    sd: float

    def scaled(self, time_scale: float) -> Quantities:
        """Undo time compression: `time_scale` is the measured seconds per second."""
        times: dict[str, Any] = {name: getattr(self, name) / time_scale for name in NAMES}
        return replace(self, **times | {"rate": self.rate * time_scale})


def quantities_of(seconds: Sequence[float], span: float) -> Quantities:
    """Summary of at least one latency in seconds, over `span` seconds."""
    taken = np.array(seconds) * 1e3
    ranks = np.percentile(taken, [0, 50, 75, 95, 99, 100], method="inverted_cdf")
    least, p50, p75, p95, p99, most = map(float, ranks)
    rate = len(taken) / span if span > 0 else 0.0
    return Quantities(rate, least, p50, p75, p95, p99, most, float(taken.mean()), float(taken.std()))


def table_of(title: str, rows: Sequence[tuple[str, Quantities, str]]) -> Table:
    """Table with a row for each (name, summary, failures)."""
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for head in NAMES.values():
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("failed", justify="right", no_wrap=True)
    for name, row, failed in rows:
        table.add_row(name, *(figure(getattr(row, one)) for one in NAMES), failed)
    return table


def figure(value: float) -> str:
    """Format with one decimal below a hundred."""
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
