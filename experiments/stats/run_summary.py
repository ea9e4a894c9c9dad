"""Summary of single runs, and their values per block for the comparison.

An invalid run has a summary, for the table of runs, but takes no part in a comparison. If the generator was late in it
or it was stopped, nor has any other run of its block; nor has a run of a block that was measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.run_data import Run
from experiments.stats import measures
from experiments.stats.ceiling import GOODPUT, Ceiling, is_at_ceiling, odds_of_miss


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. `p50`, `p99` and `mean` are deadline-mapped latency in seconds, rates per second, lags in seconds.

    `goodput` is the share (0..1) of the requests that were answered within the SLO. `set_aside` is the number of the
    attempt at the block, from 1, if it was measured again, otherwise 0.
    """

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
    goodput: float = 1.0
    set_aside: int = 0


def summarise_run(run: Run, slo: float, set_aside: int = 0) -> RunSummary:
    """Compute the summary of one run; `slo` in measured seconds."""
    facts, mapped = run.facts, measures.deadline_mapped(run)
    return RunSummary(
        block=facts.block,
        order=facts.order,
        label=facts.label,
        valid=facts.is_valid,
        invalid_reasons=facts.invalid_reasons,
        requests=run.samples.requests,
        ko=run.samples.requests - run.samples.successes,
        throughput=measures.throughput([run]),
        p50=measures.percentile(mapped, 50),
        p99=measures.percentile(mapped, 99),
        mean=measures.mean(mapped),
        span=run.span,
        offered_rate=facts.offered_rate,
        achieved_rate=facts.achieved_rate,
        lag_p50=facts.lag_p50,
        lag_p99=facts.lag_p99,
        goodput=measures.goodput([run], slo),
        set_aside=set_aside,
    )


def counted(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Runs that are compared: valid ones of blocks that are whole. `runs` are those of all entries."""
    spoiled = {run.block for run in runs if not run.set_aside and measures.spoils_block(run.invalid_reasons)}
    return [run for run in runs if run.valid and not run.set_aside and run.block not in spoiled]


def values_per_block(
    labels: Sequence[str], runs: Sequence[RunSummary], measure: str
) -> dict[str, dict[int, float]]:
    """label -> block -> value of the measure, of the runs that count; of goodput the odds of a miss."""
    kept = counted(runs)
    return {
        label: {run.block: value_of(run, measure) for run in kept if run.label == label} for label in labels
    }


def value_of(run: RunSummary, measure: str) -> float:
    """What of the run is compared."""
    if measure == GOODPUT:
        return odds_of_miss(run.goodput, run.requests)
    return float(getattr(run, measure))


def ceiling_per_block(labels: Sequence[str], runs: Sequence[RunSummary], measure: str) -> Ceiling:
    """Blocks in which failures make the measure the deadline, and the odds of a miss, of the runs that count."""
    at = [run for run in counted(runs) if is_at_ceiling(measure, run.ko, run.requests)]
    blocks = {label: {run.block for run in at if run.label == label} for label in labels}
    return Ceiling(blocks, values_per_block(labels, runs, GOODPUT))
