"""Is one entry better than another? Paired over blocks, with the noise of the laboratory beside it.

Rules of this file: the unit is the run, never the request. An entry is compared with the baseline inside
each block, as log(entry / baseline), because a ratio has no unit and a block's own weather cancels. The
interval is a bootstrap over blocks with a seeded generator, so the same files give the same verdict. Fewer
than ENOUGH_BLOCKS blocks give no verdict at all, and nothing is ranked inside the A/A pair's interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from experiments.load.samples import Floats

ENOUGH_BLOCKS = 8
EQUAL_WITHIN = math.log(1.05)
RESAMPLES = 10_000
SIGNIFICANCE = 0.05

Standing = Literal[
    "ahead", "behind", "practically equal", "within the noise floor", "undecided", "no verdict"
]


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio (geometric mean over blocks) and its 95 % bootstrap interval; one block has none: nan."""

    ratio: float
    low: float
    high: float
    blocks: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """An entry against the baseline in one measure. `p_value` is Holm-adjusted over the entries compared."""

    label: str
    baseline: str
    measure: str
    interval: Interval
    p_value: float
    standing: Standing


def paired_interval(entry: Sequence[float], baseline: Sequence[float], seed: int) -> tuple[Interval, float]:
    """The ratio entry / baseline over paired blocks and the two-sided bootstrap p-value of "ratio = 1".

    Both sequences hold one positive value per block, in the same block order.
    """
    logs = np.log(np.asarray(entry, dtype=float) / np.asarray(baseline, dtype=float))
    ratio = math.exp(float(logs.mean())) if len(logs) else math.nan
    if len(logs) < 2:
        return Interval(ratio, math.nan, math.nan, len(logs)), 1.0
    means = resampled_means(logs, seed)
    low, high = np.exp(np.percentile(means, [2.5, 97.5]))
    return Interval(ratio, float(low), float(high), len(logs)), sign_p_value(means)


def resampled_means(logs: Floats, seed: int) -> Floats:
    """RESAMPLES means of `logs` (shape (blocks,)) drawn with replacement; shape (RESAMPLES,)."""
    picks = np.random.default_rng(seed).integers(0, len(logs), size=(RESAMPLES, len(logs)))
    return np.asarray(logs[picks].mean(axis=1))


def sign_p_value(means: Floats) -> float:
    """Twice the smaller tail beyond zero; never below what the number of resamples can resolve."""
    tail = min(int(np.sum(means <= 0)), int(np.sum(means >= 0)))
    return min(1.0, 2.0 * (tail + 1) / (len(means) + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given: the family-wise error stays at the stated level."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def standing(interval: Interval, p_value: float, floor: Interval | None, more_is_better: bool) -> Standing:
    """Put an interval into words. `floor` is the A/A pair's interval, None when the campaign has no pair."""
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
    """The largest |log ratio| that two runs of the same thing showed; from the point without an interval."""
    ratios = [floor.ratio] if math.isnan(floor.low) else [floor.low, floor.high]
    return max(abs(math.log(ratio)) for ratio in ratios)


def compare(
    measure: str,
    values: dict[str, dict[int, float]],
    baseline: str,
    twins: tuple[str, str] | None,
    seed: int,
) -> tuple[list[Comparison], Interval | None]:
    """Compare every label in `values` (label -> block -> value > 0) with `baseline`.

    Returns the comparisons in the order of `values`, the twin left out, and the A/A interval.
    """
    floor = paired(values, twins[1], twins[0], seed)[0] if twins else None
    labels = [label for label in values if label != baseline and (not twins or label != twins[1])]
    found = [paired(values, label, baseline, seed) for label in labels]
    adjusted = holm([p_value for _, p_value in found])
    more_is_better = measure == "throughput"
    return [
        Comparison(label, baseline, measure, interval, p, standing(interval, p, floor, more_is_better))
        for label, (interval, _), p in zip(labels, found, adjusted, strict=True)
    ], floor


def paired(
    values: dict[str, dict[int, float]], label: str, baseline: str, seed: int
) -> tuple[Interval, float]:
    """Pair the two labels over the blocks in which both have a positive, finite value."""
    ours, theirs = values.get(label, {}), values.get(baseline, {})
    both = [n for n in sorted(ours) if is_comparable(ours[n]) and is_comparable(theirs.get(n))]
    return paired_interval([ours[n] for n in both], [theirs[n] for n in both], seed)


def is_comparable(value: float | None) -> bool:
    """Whether a logarithm can be taken of it."""
    return value is not None and math.isfinite(value) and value > 0
