"""Result of a switchback: a row for each policy, and the verdict of the same rules and words as that of a campaign.

The unit of comparison is the period of a policy within a block, never the request. Latencies are those of all
requests, a failure as slow as the deadline, so that rejecting requests does not look fast. The intervals are confidence
sequences, which hold at every look, so an evaluation may end as soon as it has a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from experiments.platform.json_values import json_value
from experiments.stats.comparison import Comparison, Interval
from experiments.stats.estimates import anytime_student
from experiments.stats.measures import LEAST_BEYOND, has_few_beyond
from experiments.stats.run_summary import RunSummary
from experiments.switchback.readings import Window
from experiments.switchback.switchback import Findings, Plan
from experiments.verdict.contest import Contest, deciding, supports_tail
from experiments.verdict.evidence import compared, evidence
from experiments.verdict.verdict import Verdict, conclude


@dataclass(frozen=True, slots=True)
class Row:
    """One policy over all its periods. Seconds; medians of the periods' values, totals of requests and shares.

    Failures count as the deadline in the latencies. `p99` is nan if no period has the requests that it takes.
    """

    label: str
    periods: int
    requests: int
    rate: float
    p50: float
    p99: float
    mean: float
    error_share: float
    goodput: float
    fallback_picks: int


@dataclass(frozen=True, slots=True)
class LiveResult:
    """`comparisons` with `baseline` in every measure; `floors` are the noise floors of the A/A pair by measure."""

    baseline: str
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    floors: dict[str, Interval]
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Result for JSON; `verdict` has the keys of that in a campaign's summary.json."""
        return {
            "baseline": self.baseline,
            "policies": [asdict(row) for row in self.rows],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
            "noise_floor": {measure: asdict(floor) for measure, floor in self.floors.items()},
            "verdict": json_value(self.verdict, digits=9),
        }


def result_of(plan: Plan, findings: Findings, control: tuple[str, str] | None) -> LiveResult:
    """Compare the policies with what was measured, even if that is less than planned."""
    runs = [
        run_of(label, block, window, plan.deadline)
        for label in plan.policies
        for block, window in findings.windows.get(label, {}).items()
        if window.ended
    ]
    contest = contest_of_plan(plan, findings, control, runs)
    comparisons, floors = compared(contest, runs)
    verdict = conclude(evidence(contest, runs, comparisons, floors.get(contest.measure)))
    rows = tuple(
        row_of(label, list(findings.windows.get(label, {}).values()), plan.deadline)
        for label in plan.policies
    )
    place = {label: index for index, (label, _) in enumerate(verdict.order)}
    best_first = sorted(rows, key=lambda row: place.get(row.label, len(place)))
    return LiveResult(contest.baseline, tuple(best_first), comparisons, floors, verdict)


def contest_of_plan(
    plan: Plan, findings: Findings, control: tuple[str, str] | None, runs: Sequence[RunSummary]
) -> Contest:
    """The contest of an evaluation. Every policy may win, but the repetition of an A/A pair."""
    has_tail, repeated = supports_tail(runs), control[1] if control else None
    labels = tuple(plan.policies)
    return Contest(
        kind="live",
        measure=deciding("p99", has_tail),
        wanted="p99",
        baseline=baseline_of(plan, findings),
        labels=labels,
        able=tuple(label for label in labels if label != repeated),
        control=control,
        deadline=plan.deadline,
        seed=plan.seed,
        has_tail=has_tail,
        method=anytime_student,
    )


def baseline_of(plan: Plan, findings: Findings) -> str:
    """Label of the initial policy if it takes part, otherwise of the first."""
    same = (label for label, policy in plan.policies.items() if policy == findings.initial)
    return next(same, next(iter(plan.policies)))


def run_of(label: str, block: int, window: Window, deadline: float) -> RunSummary:
    """A period as a run. A balancer's traffic has no generator, so there is nothing that makes it invalid."""
    return RunSummary(
        block=block,
        order=0,
        label=label,
        valid=True,
        invalid_reasons=(),
        requests=window.ended,
        ko=window.errors,
        throughput=window.answered / window.seconds,
        p50=window.mapped_quantile(0.5, deadline),
        p99=window.mapped_quantile(0.99, deadline),
        mean=window.mapped_mean(deadline),
        span=window.seconds,
        offered_rate=None,
        achieved_rate=window.rate,
        lag_p50=math.nan,
        lag_p99=math.nan,
        goodput=window.goodput(deadline),
    )


def row_of(label: str, windows: Sequence[Window], deadline: float) -> Row:
    """Summary of one policy."""
    requests = sum(window.requests for window in windows)
    seconds, ended = sum(window.seconds for window in windows), sum(window.ended for window in windows)
    good = sum(window.goodput(deadline) * window.ended for window in windows if window.ended)
    return Row(
        label,
        len(windows),
        requests,
        requests / seconds if seconds else 0.0,
        median_of([window.mapped_quantile(0.5, deadline) for window in windows]),
        median_of([window.mapped_quantile(0.99, deadline) for window in windows if has_p99(window)]),
        median_of([window.mapped_mean(deadline) for window in windows]),
        sum(window.errors for window in windows) / requests if requests else 0.0,
        good / ended if ended else math.nan,
        sum(window.fallback_picks for window in windows),
    )


def has_p99(window: Window) -> bool:
    """Whether there are the requests that a p99 takes."""
    return not has_few_beyond(window.ended, 99, LEAST_BEYOND)


def median_of(values: Sequence[float]) -> float:
    """Median of the finite values; nan without any."""
    known = [value for value in values if math.isfinite(value)]
    return median(known) if known else math.nan
