"""Result of a switchback as rows and sentences.

The unit of comparison is the period of a policy within a block, never the request (`stats/comparison.py`). Errors
are shown as they are: without errors there is no ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from experiments.live.readings import Window
from experiments.live.switchback import Findings, Plan
from experiments.results.phrases import show
from experiments.stats.comparison import Comparison, Interval, compare

MEASURES = ("p99", "p50", "mean")


@dataclass(frozen=True, slots=True)
class Row:
    """One policy over all its periods. Seconds; medians of the periods' values, total of the requests."""

    label: str
    periods: int
    requests: int
    rate: float
    p50: float
    p99: float
    mean: float
    error_share: float
    fallback_picks: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """`comparisons` with `baseline` in every measure; `floor` is the noise floor of the A/A pair in p99, if any."""

    baseline: str
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    floor: Interval | None

    @property
    def sentences(self) -> list[str]:
        """Result as sentences."""
        found = [sentence_of(comparison) for comparison in self.comparisons if comparison.measure == "p99"]
        if self.floor is not None and self.floor.blocks:
            found.append(f"Noise floor: the same policy twice differed by ×\u00a0{show(self.floor)} in p99.")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Result for JSON."""
        return {
            "baseline": self.baseline,
            "policies": [asdict(row) for row in self.rows],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
            "noise_floor": None if self.floor is None else asdict(self.floor),
            "verdict": self.sentences,
        }


def conclude(plan: Plan, findings: Findings, control: tuple[str, str] | None) -> Verdict:
    """Compare the policies with what was measured, even if that is less than planned."""
    windows = {label: findings.windows.get(label, {}) for label in plan.policies}
    baseline = baseline_of(plan, findings)
    comparisons: list[Comparison] = []
    floors: list[Interval | None] = []
    for measure in MEASURES:
        values = {
            label: {block: value_of(measure, window) for block, window in periods.items()}
            for label, periods in windows.items()
        }
        compared, floor = compare(measure, values, baseline, control, plan.seed)
        comparisons += compared
        floors.append(floor)
    rows = tuple(row_of(label, list(periods.values())) for label, periods in windows.items())
    return Verdict(baseline, rows, tuple(comparisons), floors[0])


def baseline_of(plan: Plan, findings: Findings) -> str:
    """Label of the initial policy if it takes part, otherwise of the first."""
    same = (label for label, policy in plan.policies.items() if policy == findings.initial)
    return next(same, next(iter(plan.policies)))


def value_of(measure: str, window: Window) -> float:
    """Value of a measure in seconds."""
    return {"p99": window.quantile(0.99), "p50": window.quantile(0.5), "mean": window.mean}[measure]


def row_of(label: str, windows: Sequence[Window]) -> Row:
    """Summary of one policy."""
    requests = sum(window.requests for window in windows)
    seconds = sum(window.seconds for window in windows)
    return Row(
        label,
        len(windows),
        requests,
        requests / seconds if seconds else 0.0,
        median_of([window.quantile(0.5) for window in windows]),
        median_of([window.quantile(0.99) for window in windows]),
        median_of([window.mean for window in windows]),
        sum(window.errors for window in windows) / requests if requests else 0.0,
        sum(window.fallback_picks for window in windows),
    )


def median_of(values: Sequence[float]) -> float:
    """Median of the finite values; nan without any."""
    known = [value for value in values if math.isfinite(value)]
    return median(known) if known else math.nan


def sentence_of(comparison: Comparison) -> str:
    """Text such as `p99 of a is 0.83 [0.79–0.88] times that of b: ahead.`"""
    blocks = comparison.interval.blocks
    if not blocks:
        return f"{comparison.label} was never measured beside {comparison.baseline}."
    why = f" ({blocks} block{'s' * (blocks != 1)})" if comparison.standing == "no verdict" else ""
    return (
        f"p99 of {comparison.label} is {show(comparison.interval)} times that of {comparison.baseline}: "
        f"{comparison.standing}{why}."
    )
