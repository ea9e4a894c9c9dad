"""Summary of single runs, and their values per block for the comparison.

An invalid run has a summary, for the table of runs, but takes no part in a comparison. If the generator was late in it
or it was stopped, nor has any other run of its block; nor has a run of a block that was measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from experiments.run_data import Floats, Run
from experiments.stats import measures
from experiments.stats.ceiling import GOODPUT, Ceiling, is_at_ceiling, odds_of_miss
from experiments.stats.estimates import logarithms
from experiments.stats.measures import token_measures


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. `p50`, `p99` and `mean` are deadline-mapped latency in seconds, rates per second, lags in seconds.

    `goodput` is the share (0..1) of the requests that were answered within the SLO. `set_aside` is the number of the
    attempt at the block, from 1, if it was measured again, otherwise 0. `without_lag` holds, by name, what measures
    would be at least without the generator's lag (throughput: at most); it is empty where the generator has none.
    `tokens` holds the further measures of inference by name; it is empty for other runs. `parts` holds, by measure, a
    factor of its value for each part of a replayed record; it is empty for other loads.
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
    without_lag: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=dict)
    parts: dict[str, list[float]] = field(default_factory=dict)


PARTS = 8
"""Number of parts of a replayed record, each of as many requests in a row."""


def summarise_run(run: Run, slo: float, set_aside: int = 0, is_replay: bool = False) -> RunSummary:
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
        without_lag=measures_without_lag(run, mapped, slo),
        tokens=token_measures(run, slo),
        parts=factors_of_parts(run, slo) if is_replay else {},
    )


def factors_of_parts(run: Run, slo: float) -> dict[str, list[float]]:
    """Pseudo-values of the jackknife that leaves out each part of the run in turn, over their geometric mean."""
    edges = np.linspace(0, len(run.samples), PARTS + 1).astype(int)
    found = []
    for begin, end in pairwise(edges):
        rest = Run(run.facts, run.samples.rows(np.r_[:begin, end : len(run.samples)]))
        mapped = measures.deadline_mapped(rest)
        tails = [measures.percentile(mapped, 50), measures.percentile(mapped, 99), measures.mean(mapped)]
        odds = odds_of_miss(measures.goodput([rest], slo), rest.samples.requests)
        found.append([rest.samples.successes + 0.5, *tails, odds])
    logs = logarithms(found)
    factors = np.exp((PARTS - 1) * (logs.mean(axis=0) - logs))
    return dict(zip(("throughput", "p50", "p99", "mean", GOODPUT), factors.T.tolist(), strict=True))


def measures_without_lag(run: Run, mapped: Floats, slo: float) -> dict[str, float]:
    """Measures of the run less the generator's lag. Only in a closed loop is the rate higher then."""
    least = measures.without_lag(run)
    if np.array_equal(least, mapped):
        return {}
    found = {
        "p50": measures.percentile(least, 50),
        "p99": measures.percentile(least, 99),
        "mean": measures.mean(least),
        GOODPUT: float(np.mean(np.repeat(run.samples.ok, run.samples.weight) & (least <= slo))),
    }
    if run.facts.mode == "closed" and found["mean"] > 0:
        found["throughput"] = measures.throughput([run]) * measures.mean(mapped) / found["mean"]
    return found


def counted(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Runs that are compared: valid ones of blocks that are whole. `runs` are those of all entries."""
    spoiled = {run.block for run in runs if not run.set_aside and measures.spoils_block(run.invalid_reasons)}
    return [run for run in runs if run.valid and not run.set_aside and run.block not in spoiled]


def values_per_block(
    labels: Sequence[str], runs: Sequence[RunSummary], measure: str, lagless: bool = False
) -> dict[str, dict[int, float]]:
    """label -> block -> value of the measure, of the runs that count; of goodput the odds of a miss."""
    kept = counted(runs)
    return {
        label: {run.block: value_of(run, measure, lagless) for run in kept if run.label == label}
        for label in labels
    }


def value_of(run: RunSummary, measure: str, lagless: bool = False) -> float:
    """What of the run is compared; `lagless`: without the generator's lag."""
    value = float(run.without_lag.get(measure, getattr(run, measure)) if lagless else getattr(run, measure))
    return odds_of_miss(value, run.requests) if measure == GOODPUT else value


def parts_per_label(
    labels: Sequence[str], runs: Sequence[RunSummary], measure: str
) -> dict[str, dict[int, float]]:
    """label -> part -> factor of the measure, a geometric mean over the runs that count; empty without a replay."""
    kept = [run for run in counted(runs) if run.parts]
    found = {label: [run.parts[measure] for run in kept if run.label == label] for label in labels}
    return {
        label: dict(enumerate(np.exp(logarithms(rows).mean(axis=0)).tolist()))
        for label, rows in found.items()
        if rows
    }


def ceiling_per_block(
    labels: Sequence[str], runs: Sequence[RunSummary], measure: str, lagless: bool = False
) -> Ceiling:
    """Blocks in which failures make the measure the deadline, and the odds of a miss, of the runs that count."""
    at = [run for run in counted(runs) if is_at_ceiling(measure, run.ko, run.requests)]
    blocks = {label: {run.block for run in at if run.label == label} for label in labels}
    odds, parts = values_per_block(labels, runs, GOODPUT, lagless), parts_per_label(labels, runs, GOODPUT)
    return Ceiling(blocks, odds, parts)
