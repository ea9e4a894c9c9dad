"""Agreement of simulation and measurement: share per worker, mean, 99th percentile, goodput and ranking of policies.

Pure functions of runs. Only blocks that count in a comparison of measured runs do, and the same blocks of the
simulation. A failed request counts as slow as the deadline in both worlds. A figure is judged by its 95 % interval over
eight blocks or more: met if the whole interval lies within the bound, missed if it lies wholly beyond, otherwise not
judged. The simulation noise (distance of a single simulation from the mean of many with other decision draws) is shown
beside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from experiments.results.directory import Results, believable
from experiments.run_data import Floats, Run
from experiments.stats import measures, student
from experiments.stats.ceiling import is_at_ceiling
from experiments.stats.comparison import (
    ENOUGH_BLOCKS,
    SIGNIFICANCE,
    Interval,
    compare_pairs,
    paired_interval,
)
from experiments.stats.estimates import geometric_mean, paired_student
from experiments.stats.run_summary import (
    RunSummary,
    ceiling_per_block,
    counted,
    summarise_run,
    values_per_block,
)

BOUNDS = {"share": 0.05, "mean": 0.05, "p99": 0.10, "goodput": 0.01}
"""Largest distance of a simulated figure from the measured one that counts as agreement: relative, of an even share for
shares, and a difference of shares of the requests for goodput.
"""


SIDES = ("ahead", "behind")
"""Standings of a pair that is apart."""

LATENCY: dict[str, Callable[[Floats], float]] = {
    "mean": measures.mean,
    "p99": lambda latency: measures.percentile(latency, 99),
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """One figure, measured and simulated, latencies in seconds; for shares, the worker with the greatest distance.

    `distance` is simulated over measured, less 1; for shares, the difference as a fraction of an even share; for
    goodput the difference. `interval` is that of 1 + `distance`. `is_met` is None if it cannot be judged.
    `simulation_noise` is the distance of a single simulation from many; nan if unknown.
    """

    quantity: str
    measured: float
    simulated: float
    distance: float
    is_met: bool | None
    interval: Interval
    has_few: bool = False
    simulation_noise: float = math.nan


@dataclass(frozen=True, slots=True)
class FidelityRow:
    """One entry of a scenario: its agreements and failures in per cent. `fault` is the reason why it is not judged."""

    label: str
    policy: str
    blocks: int
    agreements: tuple[Agreement, ...]
    failed_measured: float
    failed_simulated: float
    fault: str = ""


@dataclass(frozen=True, slots=True)
class PairComparison:
    """Pair comparison of two entries by p99: ratio of `first` to `second`, measured and simulated.

    `is_apart` says whether one of them stands ahead when measured; `is_same` whether it does so when simulated, None if
    neither does.
    """

    first: str
    second: str
    measured: Interval
    simulated: Interval
    is_apart: bool
    is_same: bool | None


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """Result of one scenario, measured and simulated."""

    name: str
    question: str
    rows: tuple[FidelityRow, ...]
    pair_comparisons: tuple[PairComparison, ...]
    orders: tuple[tuple[str, ...], tuple[str, ...]]
    """Labels by ascending p99: measured, simulated."""

    @property
    def ranking_is_met(self) -> bool | None:
        """Whether all pairs that differ in measurement have the same order in simulation; None without such a pair, or
        if the simulation does not tell one of them apart.
        """
        apart = [comparison.is_same for comparison in self.pair_comparisons if comparison.is_apart]
        return False if False in apart else None if None in apart or not apart else True


def scenario_result_of(measured: Results, simulated: Results, again: Results | None = None) -> ScenarioResult:
    """Compare the measured and simulated results of one scenario; `again` is a single simulation with its own draws."""
    scenario = measured.scenario
    entries = [entry for entry in measured.entries() if entry.repeat_of is None]
    pairs = {entry.label: paired_runs(measured, simulated, entry.label) for entry in entries}
    slo = scenario.slo * scenario.time_scale
    ours = counted([summarise_run(run, slo) for run in measured.runs])
    blocks = {run.block for run in ours}
    theirs = [summarise_run(run, slo) for run in simulated.runs if run.facts.block in blocks]
    rows = []
    for entry in entries:
        row = fidelity_row(entry.label, entry.policy.name, *pairs[entry.label], slo)
        counts = any(run.label == entry.label for run in ours)
        rows.append(with_simulation_noise(row, pairs, again, slo) if counts else unjudged(row, measured))
    labels = [entry.label for entry in entries]
    pair_comparisons = pair_comparisons_of(labels, ours, theirs, scenario.control_pair)
    orders = order_of(labels, ours), order_of(labels, theirs)
    return ScenarioResult(scenario.name, scenario.question, tuple(rows), pair_comparisons, orders)


def paired_runs(measured: Results, simulated: Results, label: str) -> tuple[list[Run], list[Run]]:
    """Measured and simulated runs of the same blocks: of those that count, or of all measured ones if none does."""
    theirs = {run.facts.block: run for run in simulated.runs_of(label)}
    kept = [run for run in believable(measured, label) if run.facts.block in theirs]
    return kept, [theirs[run.facts.block] for run in kept]


def fidelity_row(
    label: str, policy: str, ours: Sequence[Run], theirs: Sequence[Run], slo: float
) -> FidelityRow:
    """Agreements of one entry; `slo` in measured seconds."""
    if not ours:
        return FidelityRow(label, policy, 0, (), math.nan, math.nan, "no block has a run in both worlds")
    invalid = next((run for run in theirs if not run.facts.is_valid), None)
    agreements = (
        share_agreement(ours, theirs),
        *(latency_agreement(name, ours, theirs) for name in LATENCY),
        goodput_agreement(ours, theirs, slo),
    )
    measured, simulated = (measures.statistics_row(runs).ko_percent for runs in (ours, theirs))
    row = FidelityRow(label, policy, len(ours), agreements, measured, simulated)
    if invalid is None:
        return row
    return with_fault(row, f"invalid simulated run: {invalid.facts.invalid_reasons[0]}")


def unjudged(row: FidelityRow, measured: Results) -> FidelityRow:
    """Row of an entry without a block that counts; the reason may be another entry's run."""
    invalid = [run for run in measured.runs if not run.facts.is_valid]
    own = [run for run in invalid if run.facts.label == row.label] or invalid
    why = f": {own[0].facts.label}: {own[0].facts.invalid_reasons[0]}" if own else ""
    return with_fault(row, row.fault or f"no measured block counts{why}")


def with_fault(row: FidelityRow, fault: str) -> FidelityRow:
    """Copy of the row that judges nothing."""
    agreements = tuple(replace(one, is_met=None) for one in row.agreements)
    return replace(row, agreements=agreements, fault=fault)


def with_simulation_noise(
    row: FidelityRow, pairs: Mapping[str, tuple[list[Run], list[Run]]], again: Results | None, slo: float
) -> FidelityRow:
    """Copy of `row` with the simulation noise of each agreement, from the same blocks of `again`."""
    if again is None or not row.agreements:
        return row
    theirs = pairs[row.label][1]
    others = {run.facts.block: run for run in again.runs_of(row.label)}
    if any(run.facts.block not in others for run in theirs):
        return row
    twice = fidelity_row(row.label, row.policy, theirs, [others[run.facts.block] for run in theirs], slo)
    found = zip(row.agreements, twice.agreements, strict=True)
    return replace(
        row, agreements=tuple(replace(one, simulation_noise=other.distance) for one, other in found)
    )


def judged(interval: Interval, bound: float) -> bool | None:
    """Whether the interval of 1 + distance lies within the bound or beyond; else None, and for few blocks."""
    if interval.blocks < ENOUGH_BLOCKS or math.isnan(interval.low):
        return None
    if 1 - bound <= interval.low and interval.high <= 1 + bound:
        return True
    return False if interval.low > 1 + bound or interval.high < 1 - bound else None


def difference_of(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Interval of 1 + (theirs - ours), from paired differences."""
    found = paired_student(np.asarray(theirs) - np.asarray(ours))
    return Interval(1 + found.mean, 1 + found.low, 1 + found.high, len(ours))


def share_agreement(ours: Sequence[Run], theirs: Sequence[Run]) -> Agreement:
    """Shares relative to an even share, because small shares have large errors; shown is the most distant worker.

    Met if it is met for each worker; missed if it is for any, by intervals widened for their number (Bonferroni). Not
    judged of inference: a draw decides which of equal engines gets a prefix, and with it all that begin alike.
    """
    measured, simulated = measures.share_per_worker(ours), measures.share_per_worker(theirs)
    by_block = [[measures.share_per_worker([run]) for run in runs] for runs in (ours, theirs)]
    count, intervals = len(measured), dict[str, Interval]()
    for worker in measured:
        parts = [[count * shares[worker] for shares in world] for world in by_block]
        intervals[worker] = difference_of(*parts)
    worst = max(intervals, key=lambda worker: abs(intervals[worker].ratio - 1))
    met = {judged(interval, BOUNDS["share"]) for interval in intervals.values()}
    missed = any(judged(widened(one, count), BOUNDS["share"]) is False for one in intervals.values())
    is_met = False if missed else True if met == {True} else None
    if ours[0].facts.tpot_slo is not None:
        is_met = None
    distance = intervals[worst].ratio - 1
    return Agreement("share", measured[worst], simulated[worst], distance, is_met, intervals[worst])


def widened(interval: Interval, count: int) -> Interval:
    """The interval as one of `count` that hold together with 95 %."""
    if interval.blocks < 2:
        return interval
    degrees = interval.blocks - 1
    factor = student.quantile(1 - SIGNIFICANCE / count, degrees) / student.quantile(1 - SIGNIFICANCE, degrees)
    low, high = (interval.ratio + factor * (end - interval.ratio) for end in (interval.low, interval.high))
    return Interval(interval.ratio, low, high, interval.blocks)


def latency_agreement(name: str, ours: Sequence[Run], theirs: Sequence[Run]) -> Agreement:
    """Latency figure of all requests, with the interval of the ratio over blocks; not judged at the deadline, nor where
    the generator's lag decides.
    """
    values = [[LATENCY[name](measures.deadline_mapped(run)) for run in runs] for runs in (ours, theirs)]
    measured, simulated = (
        LATENCY[name](np.concatenate([measures.deadline_mapped(run) for run in runs]))
        for runs in (ours, theirs)
    )
    interval, _ = paired_interval(values[1], values[0])
    requests = sum(len(run.samples) for run in ours)
    has_few = name == "p99" and measures.has_few_beyond(requests, 99)
    tied = sum(is_lost(name, one) and is_lost(name, other) for one, other in zip(ours, theirs, strict=True))
    least = [LATENCY[name](measures.without_lag(run)) for run in ours]
    lagless, _ = paired_interval(values[1], least)
    verdicts = {judged(one, BOUNDS[name]) for one in (interval, lagless)}
    is_met = None if 2 * tied >= len(ours) or len(verdicts) > 1 else verdicts.pop()
    return Agreement(name, measured, simulated, interval.ratio - 1, is_met, interval, has_few)


def is_lost(name: str, run: Run) -> bool:
    """Whether failures make the figure the deadline."""
    return is_at_ceiling(name, int((~run.samples.ok).sum()), len(run.samples))


def goodput_agreement(ours: Sequence[Run], theirs: Sequence[Run], slo: float) -> Agreement:
    """Share of the requests that were answered within the SLO."""
    interval = difference_of(*([measures.goodput([run], slo) for run in runs] for runs in (ours, theirs)))
    measured, simulated = (measures.goodput(runs, slo) for runs in (ours, theirs))
    is_met = judged(interval, BOUNDS["goodput"])
    return Agreement("goodput", measured, simulated, interval.ratio - 1, is_met, interval)


def pair_comparisons_of(
    labels: Sequence[str],
    ours: Sequence[RunSummary],
    theirs: Sequence[RunSummary],
    control: tuple[str, str] | None,
) -> tuple[PairComparison, ...]:
    """Compare every two entries by p99, or by goodput where it is the deadline, measured and simulated."""
    names = [*labels, *(control[1:] if control else ())]
    pairs, worlds = list(combinations(labels, 2)), []
    for runs in (ours, theirs):
        values, ceiling = values_per_block(names, runs, "p99"), ceiling_per_block(names, runs, "p99")
        is_virtual = runs is not ours
        worlds.append(compare_pairs("p99", values, pairs, paired_student, ceiling, control, is_virtual)[0])
    return tuple(
        PairComparison(
            measured.label,
            measured.baseline,
            measured.interval,
            simulated.interval,
            measured.standing in SIDES,
            measured.standing == simulated.standing if simulated.standing in SIDES else None,
        )
        for measured, simulated in zip(*worlds, strict=True)
    )


def order_of(labels: Sequence[str], runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """Labels by the geometric mean of their p99s; entries without one are left out."""
    values = values_per_block(labels, runs, "p99")
    means = {label: geometric_mean(found.values()) for label, found in values.items() if found}
    return tuple(sorted(means, key=means.__getitem__))
