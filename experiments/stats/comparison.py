"""Paired comparison of entries over blocks, with the A/A control's noise floor.

The statistical unit is the run, never the request. An entry is compared with the baseline within each block, as
log(entry / baseline): a ratio has no unit, and conditions common to a block cancel. The interval is Student's over the
blocks' logarithms. Fewer than `ENOUGH_BLOCKS` blocks give no verdict, and nothing is ranked within the A/A interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from experiments.stats.estimates import Estimate, Method, logarithms, paired_student

ENOUGH_BLOCKS = 8
EQUAL_WITHIN = math.log(1.05)
SIGNIFICANCE = 0.05

Standing = Literal[
    "ahead", "behind", "practically equal", "within the noise floor", "undecided", "no verdict"
]


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio (geometric mean over blocks) and its 95 % confidence interval; nan with a single block."""

    ratio: float
    low: float
    high: float
    blocks: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """An entry compared with the baseline in one measure. `p_value` is Holm-adjusted over the entries compared."""

    label: str
    baseline: str
    measure: str
    interval: Interval
    p_value: float
    standing: Standing


def paired_interval(
    entry: Sequence[float], baseline: Sequence[float], seed: int = 0, method: Method = paired_student
) -> tuple[Interval, float]:
    """Ratio entry / baseline over paired blocks, and the two-sided p-value of "ratio = 1".

    Both sequences hold one positive value per block, in the same block order. `seed` is for methods that draw.
    """
    return as_interval(method(logarithms(entry) - logarithms(baseline), seed), len(entry))


def as_interval(estimate: Estimate, blocks: int) -> tuple[Interval, float]:
    """Convert an estimate of logarithms to an interval of ratios and its p-value."""
    ratio, low, high = (math.exp(value) for value in estimate[:3])
    return Interval(ratio, low, high, blocks), estimate.p_value


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given; it controls the family-wise error."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def standing(interval: Interval, p_value: float, floor: Interval | None, more_is_better: bool) -> Standing:
    """Classify an interval. `floor` is the A/A control's interval, None when the campaign has no pair."""
    if interval.blocks < ENOUGH_BLOCKS:
        return "no verdict"
    low, high = math.log(interval.low), math.log(interval.high)
    if max(abs(low), abs(high)) <= EQUAL_WITHIN:
        return "practically equal"
    if floor is not None and abs(math.log(interval.ratio)) <= noise(floor):
        return "within the noise floor"
    if p_value >= SIGNIFICANCE or low <= 0 <= high:
        return "undecided"
    return "ahead" if (low > 0) is more_is_better else "behind"


def noise(floor: Interval) -> float:
    """Noise: the largest |log ratio| of the A/A interval, or that of its mean when there is no interval."""
    ratios = [floor.ratio] if math.isnan(floor.low) else [floor.low, floor.high]
    return max(abs(math.log(ratio)) for ratio in ratios)


def compare(
    measure: str,
    values: dict[str, dict[int, float]],
    baseline: str,
    control: tuple[str, str] | None,
    seed: int = 0,
    method: Method = paired_student,
) -> tuple[list[Comparison], Interval | None]:
    """Compare every label in `values` (label -> block -> value > 0) with `baseline`.

    Returns the comparisons in the order of `values`, without the A/A control, and the A/A interval.
    """
    floor = paired(values, control[1], control[0], seed, method)[0] if control else None
    labels = [label for label in values if label != baseline and (not control or label != control[1])]
    found = [paired(values, label, baseline, seed, method) for label in labels]
    adjusted = holm([p_value for _, p_value in found])
    more_is_better = measure == "throughput"
    return [
        Comparison(label, baseline, measure, interval, p, standing(interval, p, floor, more_is_better))
        for label, (interval, _), p in zip(labels, found, adjusted, strict=True)
    ], floor


def compare_all(
    measure: str,
    values: dict[str, dict[int, float]],
    labels: Sequence[str],
    floor: Interval | None,
    seed: int = 0,
    method: Method = paired_student,
) -> dict[tuple[str, str], Comparison]:
    """Compare each of `labels` with each other, in both directions; Holm's adjustment is over all pairs.

    A claim about the best of them, found in the same blocks, therefore keeps the error rate.
    """
    pairs = list(combinations(labels, 2))
    found = [paired(values, *pair, seed, method) for pair in pairs]
    adjusted = holm([p_value for _, p_value in found])
    more_is_better = measure == "throughput"
    forward = [
        Comparison(*pair, measure, interval, p, standing(interval, p, floor, more_is_better))
        for pair, (interval, _), p in zip(pairs, found, adjusted, strict=True)
    ]
    return {(one.label, one.baseline): one for found in forward for one in (found, inverted(found))}


def inverted(comparison: Comparison) -> Comparison:
    """The same comparison seen from the baseline."""
    of, ratio = comparison.interval, comparison.interval.ratio
    swapped: dict[Standing, Standing] = {"ahead": "behind", "behind": "ahead"}
    return replace(
        comparison,
        label=comparison.baseline,
        baseline=comparison.label,
        interval=Interval(1 / ratio, 1 / of.high, 1 / of.low, of.blocks),
        standing=swapped.get(comparison.standing, comparison.standing),
    )


def paired(
    values: dict[str, dict[int, float]],
    label: str,
    baseline: str,
    seed: int = 0,
    method: Method = paired_student,
) -> tuple[Interval, float]:
    """Pair two labels over the blocks in which both have a positive, finite value."""
    ours, theirs = values.get(label, {}), values.get(baseline, {})
    both = [n for n in sorted(ours) if is_comparable(ours[n]) and is_comparable(theirs.get(n))]
    return paired_interval([ours[n] for n in both], [theirs[n] for n in both], seed, method)


def is_comparable(value: float | None) -> bool:
    """Whether the value has a finite logarithm."""
    return value is not None and math.isfinite(value) and value > 0
