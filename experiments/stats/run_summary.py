"""Summary of single runs, and their values per block for the comparison.

An invalid run has a summary, for the table of runs, but takes no part in a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.stats import measures
from experiments.stats.samples import Run


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. `p50`, `p99` and `mean` are deadline-mapped latency in seconds, rates per second, lags in seconds."""

    block: int
    order: int
    label: str
    valid: bool
    invalid_reasons: tuple[str, ...]
    requests: int
    ko: int
    throughput: float
    p50: float
    p99: float
    mean: float
    span: float
    offered_rate: float | None
    achieved_rate: float
    lag_p50: float
    lag_p99: float


def summarise_run(run: Run) -> RunSummary:
    """Compute the summary of one run."""
    facts, mapped = run.facts, measures.deadline_mapped(run)
    return RunSummary(
        block=facts.block,
        order=facts.order,
        label=facts.label,
        valid=facts.is_valid,
        invalid_reasons=facts.invalid_reasons,
        requests=len(run.samples),
        ko=int((~run.samples.ok).sum()),
        throughput=measures.throughput([run]),
        p50=measures.percentile(mapped, 50),
        p99=measures.percentile(mapped, 99),
        mean=float(mapped.mean()),
        span=run.samples.span,
        offered_rate=facts.offered_rate,
        achieved_rate=facts.achieved_rate,
        lag_p50=facts.lag_p50,
        lag_p99=facts.lag_p99,
    )


def values_per_block(
    labels: Sequence[str], runs: Sequence[RunSummary], measure: str
) -> dict[str, dict[int, float]]:
    """label -> block -> value of the measure, valid runs only."""
    return {
        label: {run.block: float(getattr(run, measure)) for run in runs if run.label == label and run.valid}
        for label in labels
    }
