"""Agreement of simulation and measurement: share per worker, mean, 99th percentile and ranking of policies.

Pure functions of runs. Only blocks whose measured run is valid count, and the same blocks of the simulation. A figure
without any valid run is shown and not judged. A figure beyond its bound is a miss; the confidence interval over blocks
and the simulation noise (distance of a single simulation from the mean of many with other decision draws) help to tell
a wrong model from too few requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from experiments.results.directory import Results
from experiments.stats import measures
from experiments.stats.comparison import EQUAL_WITHIN, Interval, noise, paired_interval
from experiments.stats.samples import Floats, Run

BOUNDS = {"share": 0.05, "mean": 0.05, "p99": 0.10}
"""Largest relative distance of a simulated figure from the measured one that counts as agreement."""

MEASURED, SIMULATED = 0, 1
Worlds = tuple[dict[int, float], dict[int, float]]
"""Value by block: measured, simulated."""


def mean(latency: Floats) -> float:
    """Mean; nan for an empty array."""
    return float(np.mean(latency)) if len(latency) else math.nan


def p99(latency: Floats) -> float:
    return measures.percentile(latency, 99)


LATENCY: dict[str, Callable[[Floats], float]] = {"mean": mean, "p99": p99}


@dataclass(frozen=True, slots=True)
class Agreement:
    """One figure, measured and simulated, latencies in seconds; for shares, the worker with the greatest distance.

    `distance` is simulated over measured, less 1; for shares, the difference as a fraction of an even share. `is_met`
    is None if it cannot be judged. `simulation_noise` is the distance of a single simulation from many; nan if
    unknown.
    """

    quantity: str
    measured: float
    simulated: float
    distance: float
    is_met: bool | None
    interval: Interval | None = None
    has_few: bool = False
    simulation_noise: float = math.nan


@dataclass(frozen=True, slots=True)
class Row:
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

    `is_apart` says whether the measured ratio differs from 1 beyond noise; `is_same` whether the simulated ratio is on
    the same side.
    """

    first: str
    second: str
    measured: Interval
    simulated: Interval
    is_apart: bool
    is_same: bool


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """Result of one scenario, measured and simulated."""

    name: str
    question: str
    rows: tuple[Row, ...]
    pair_comparisons: tuple[PairComparison, ...]
    orders: tuple[tuple[str, ...], tuple[str, ...]]
    """Labels by ascending p99: measured, simulated."""

    @property
    def ranking_is_met(self) -> bool | None:
        """Whether all pairs that differ in measurement have the same order in simulation; None without such a pair."""
        apart = [comparison for comparison in self.pair_comparisons if comparison.is_apart]
        return all(comparison.is_same for comparison in apart) if apart else None


def scenario_result_of(measured: Results, simulated: Results, again: Results | None = None) -> ScenarioResult:
    """Compare the measured and simulated results of one scenario; `again` is a single simulation with its own draws."""
    scenario = measured.scenario
    entries = [entry for entry in measured.entries() if entry.repeat_of is None]
    pairs = {entry.label: paired_runs(measured, simulated, entry.label) for entry in entries}
    rows = tuple(
        with_simulation_noise(
            row_of(entry.label, entry.policy.name, *pairs[entry.label], scenario.seed), pairs, again
        )
        for entry in entries
    )
    values = {label: (values_of(ours), values_of(theirs)) for label, (ours, theirs) in pairs.items()}
    floor = floor_of(measured)
    pair_comparisons = tuple(
        pair_comparison_of(a, b, values, floor, scenario.seed) for a, b in combinations(values, 2)
    )
    orders = order_of(values, MEASURED), order_of(values, SIMULATED)
    return ScenarioResult(scenario.name, scenario.question, rows, pair_comparisons, orders)


def paired_runs(measured: Results, simulated: Results, label: str) -> tuple[list[Run], list[Run]]:
    """Measured and simulated runs of the same blocks: of the valid measured runs, or of all if none is valid."""
    theirs = {run.facts.block: run for run in simulated.runs_of(label)}
    ours = [run for run in measured.runs_of(label) if run.facts.block in theirs]
    kept = [run for run in ours if run.facts.is_valid] or ours
    return kept, [theirs[run.facts.block] for run in kept]


def row_of(label: str, policy: str, ours: Sequence[Run], theirs: Sequence[Run], seed: int) -> Row:
    """Agreements of one entry; not judged unless both worlds have a valid run."""
    if not ours:
        return Row(label, policy, 0, (), math.nan, math.nan, "no block has a run in both worlds")
    fault = fault_of(ours, theirs)
    found = (
        share_agreement(ours, theirs),
        *(latency_agreement(name, ours, theirs, seed) for name in LATENCY),
    )
    agreements = tuple(replace(one, is_met=None) if fault else one for one in found)
    return Row(label, policy, len(ours), agreements, failed(ours), failed(theirs), fault)


def with_simulation_noise(
    row: Row, pairs: Mapping[str, tuple[list[Run], list[Run]]], again: Results | None
) -> Row:
    """Copy of `row` with the simulation noise of each agreement, from the same blocks of `again`."""
    if again is None or not row.agreements:
        return row
    theirs = pairs[row.label][1]
    others = {run.facts.block: run for run in again.runs_of(row.label)}
    if any(run.facts.block not in others for run in theirs):
        return row
    twice = row_of(row.label, row.policy, theirs, [others[run.facts.block] for run in theirs], 0)
    found = zip(row.agreements, twice.agreements, strict=True)
    return replace(
        row, agreements=tuple(replace(one, simulation_noise=other.distance) for one, other in found)
    )


def fault_of(ours: Sequence[Run], theirs: Sequence[Run]) -> str:
    """Reason why the entry is not judged; empty if it is."""
    for world, runs in (("measured", ours), ("simulated", theirs)):
        invalid = [run for run in runs if not run.facts.is_valid]
        if invalid:
            return f"no valid {world} run: {invalid[0].facts.invalid_reasons[0]}"
    return ""


def share_agreement(ours: Sequence[Run], theirs: Sequence[Run]) -> Agreement:
    """Share of the worker whose shares differ most, relative to an even share: small shares have large errors."""
    measured, simulated = measures.share_per_worker(ours), measures.share_per_worker(theirs)
    worst = max(measured, key=lambda worker: abs(simulated[worker] - measured[worker]))
    distance = (simulated[worst] - measured[worst]) * len(measured)
    is_met = abs(distance) <= BOUNDS["share"]
    return Agreement("share", measured[worst], simulated[worst], distance, is_met)


def latency_agreement(name: str, ours: Sequence[Run], theirs: Sequence[Run], seed: int) -> Agreement:
    """Latency figure of successes over all blocks, with the confidence interval of the ratio over blocks."""
    measured, simulated = (LATENCY[name](measures.success_latency(runs)) for runs in (ours, theirs))
    distance = simulated / measured - 1
    entry, baseline = (
        [LATENCY[name](measures.success_latency([run])) for run in runs] for runs in (theirs, ours)
    )
    interval, _ = paired_interval(entry, baseline, seed)
    is_met = None if math.isnan(distance) else abs(distance) <= BOUNDS[name]
    has_few = name == "p99" and measures.has_few_beyond(len(measures.success_latency(ours)), 99)
    return Agreement(name, measured, simulated, distance, is_met, interval, has_few)


def failed(runs: Sequence[Run]) -> float:
    """Failed requests in per cent."""
    return measures.statistics_row(runs).ko_percent


def floor_of(results: Results) -> Interval | None:
    """Interval of the p99 ratio of the A/A control to its original: the noise floor of measurement."""
    if results.scenario.control_pair is None:
        return None
    original, repeat = (values_of(results.runs_of(label)) for label in results.scenario.control_pair)
    blocks = sorted(original.keys() & repeat.keys())
    if not blocks:
        return None
    return paired_interval([repeat[n] for n in blocks], [original[n] for n in blocks], results.scenario.seed)[
        0
    ]


def pair_comparison_of(
    first: str, second: str, values: Mapping[str, Worlds], floor: Interval | None, seed: int
) -> PairComparison:
    """Compare two entries block by block, measured and simulated."""
    measured, simulated = (
        ratio_of(values[first][world], values[second][world], seed) for world in (MEASURED, SIMULATED)
    )
    is_apart = stands_apart(measured, floor)
    is_same = (measured.ratio > 1) == (simulated.ratio > 1)
    return PairComparison(first, second, measured, simulated, is_apart, is_same)


def ratio_of(ours: Mapping[int, float], theirs: Mapping[int, float], seed: int) -> Interval:
    """Interval of the ratio of one entry to another, over their common blocks."""
    blocks = sorted(ours.keys() & theirs.keys())
    if not blocks:
        return Interval(math.nan, math.nan, math.nan, 0)
    return paired_interval([ours[n] for n in blocks], [theirs[n] for n in blocks], seed)[0]


def stands_apart(interval: Interval, floor: Interval | None) -> bool:
    """Whether two entries differ by more than 5 % and the A/A control, with an interval that excludes 1."""
    if interval.blocks < 2 or math.isnan(interval.low):
        return False
    is_clear = interval.low > 1 or interval.high < 1
    return is_clear and abs(math.log(interval.ratio)) > max(EQUAL_WITHIN, noise(floor) if floor else 0.0)


def values_of(runs: Sequence[Run]) -> dict[int, float]:
    """p99 of the successes of each valid run by block, in seconds."""
    found = {run.facts.block: p99(measures.success_latency([run])) for run in runs if run.facts.is_valid}
    return {block: value for block, value in found.items() if value > 0}


def order_of(values: Mapping[str, Worlds], world: int) -> tuple[str, ...]:
    """Labels by the geometric mean of their p99s; entries without one are left out."""
    means = {
        label: float(np.mean(np.log([*pair[world].values()])))
        for label, pair in values.items()
        if pair[world]
    }
    return tuple(sorted(means, key=means.__getitem__))
