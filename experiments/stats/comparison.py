"""Paired comparison of entries over blocks, with the A/A control's noise floor.

The statistical unit is the run, never the request. An entry is compared with the baseline within each block, as
log(entry / baseline): a ratio has no unit, and conditions common to a block cancel. The interval is Student's over the
blocks' logarithms. Fewer than `ENOUGH_BLOCKS` blocks give no verdict.
An entry that the A/A control runs twice is represented by the geometric mean of both runs, which has half the variance,
unless the two differ: then the laboratory is biased, and the repetition is the noise floor of that entry's comparisons.
Where both entries' latency is the deadline in at least half of the blocks, the odds of a miss are compared instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from experiments.run_data import Floats
from experiments.stats.ceiling import GOODPUT, Ceiling
from experiments.stats.estimates import Estimate, Method, logarithms, over_parts, paired_student

ENOUGH_BLOCKS = 8
EQUAL_WITHIN = math.log(1.05)
SIGNIFICANCE = 0.05

MAX_LOG = 700.0
"""Absolute logarithm beyond which a ratio or its inverse has no float."""

Values = Mapping[str, Mapping[int, float]]
"""label -> block -> value > 0."""

NO_PARTS: Values = {}

Control = tuple[str, str]
"""Labels of the A/A pair: an entry and its repetition."""

Standing = Literal[
    "ahead",
    "behind",
    "practically equal",
    "within the noise floor",
    "within the generator's lag",
    "undecided",
    "no verdict",
]
CLAIMS: tuple[Standing, ...] = ("ahead", "behind", "practically equal")


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio (geometric mean over blocks) and its 95 % confidence interval; nan with a single block."""

    ratio: float
    low: float
    high: float
    blocks: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """An entry compared with the baseline in one measure. `p_value` is Holm-adjusted over the entries compared.

    `judged_by` is the measure, or `GOODPUT` where the latency of both is the deadline: `interval` is then a ratio of
    the odds of a miss, of which less is better, as of a latency. `at_deadline` is the one of both whose latency, and
    not the other's, is the deadline in at least half of the blocks: the true ratio is then further from 1.
    """

    label: str
    baseline: str
    measure: str
    interval: Interval
    p_value: float
    standing: Standing
    judged_by: str = ""
    at_deadline: str = ""

    def __post_init__(self) -> None:
        if not self.judged_by:
            object.__setattr__(self, "judged_by", self.measure)


class Judged(NamedTuple):
    """A pair before adjustment. `is_tied`: the measure is the deadline for both in a block, so they may be unequal.

    `at_deadline` as of a `Comparison`.
    """

    by: str
    interval: Interval
    p_value: float
    is_tied: bool = False
    at_deadline: str = ""


def paired_interval(
    entry: Sequence[float], baseline: Sequence[float], method: Method = paired_student
) -> tuple[Interval, float]:
    """Ratio entry / baseline over paired blocks, and the two-sided p-value of "ratio = 1".

    Both sequences hold one positive value per block, in the same block order.
    """
    return as_interval(method(logarithms(entry) - logarithms(baseline)), len(entry))


def as_interval(estimate: Estimate, blocks: int) -> tuple[Interval, float]:
    """Convert an estimate of logarithms to an interval of ratios, within the range of a float, and its p-value."""
    ratio, low, high = (math.exp(min(max(value, -MAX_LOG), MAX_LOG)) for value in estimate[:3])
    return Interval(ratio, low, high, blocks), estimate.p_value


def typical(values: Sequence[float]) -> Interval:
    """Geometric mean of positive values, one per block, with Student's interval: of figures or of ratios."""
    return as_interval(paired_student(logarithms(values)), len(values))[0]


def average(values: Sequence[float]) -> Interval:
    """The same of values that may be negative: arithmetic mean and interval, in their unit."""
    found = paired_student(np.asarray(values, dtype=float))
    return Interval(*found[:3], len(values))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given; it controls the family-wise error."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def standing(
    interval: Interval,
    p_value: float,
    floor: Interval | None,
    more_is_better: bool,
    is_tied: bool = False,
) -> Standing:
    """Classify an interval. `floor` is the A/A interval of the pair's entry, None where there is none.

    A pair `is_tied` if both are at the deadline in a block; it is not called equal then.
    """
    if interval.blocks < ENOUGH_BLOCKS:
        return "no verdict"
    low, high = math.log(interval.low), math.log(interval.high)
    if max(abs(low), abs(high)) <= EQUAL_WITHIN:
        return "undecided" if is_tied else "practically equal"
    if floor is not None and abs(math.log(interval.ratio)) <= noise(floor):
        return "within the noise floor"
    if p_value >= SIGNIFICANCE or low <= 0 <= high:
        return "undecided"
    return "ahead" if (low > 0) is more_is_better else "behind"


def noise(floor: Interval) -> float:
    """Bias that the A/A pair proves: the distance of its interval from 1, as a logarithm; 0 if that holds 1."""
    return max(0.0, math.log(floor.low), -math.log(floor.high)) if is_biased(floor) else 0.0


def floor_between(floor: Interval | None, control: Control | None, *labels: str) -> Interval | None:
    """Noise floor of a comparison of `labels`, if the entry that was run twice is one of them and has a bias."""
    is_theirs = control is not None and control[0] in labels
    return floor if is_theirs and is_biased(floor) else None


def is_biased(floor: Interval | None) -> bool:
    """Whether two runs of the same entry differ: the A/A interval excludes 1."""
    return floor is not None and (floor.low > 1 or floor.high < 1)


def compare_pairs(
    measure: str,
    values: Values,
    pairs: Sequence[tuple[str, str]],
    method: Method = paired_student,
    ceiling: Ceiling | None = None,
    control: Control | None = None,
    is_virtual: bool = False,
    parts: Values = NO_PARTS,
) -> tuple[list[Comparison], Interval | None]:
    """Compare the pairs (label, baseline) as one family of Holm's adjustment; returns the A/A interval, too.

    A claim about the best of several, found in the same blocks, keeps the error rate if the pairs are all of them.
    `is_virtual`: in virtual time, where no machine can favour a run, so that there is no noise floor. `parts` are
    factors by part of a record that every block replays.
    """
    floor = paired(values, control[1], control[0], method, parts)[0] if control else None
    floors: dict[str, Interval] = {}
    if floor is not None and control is not None and not is_virtual:
        floors[measure] = floor
        if ceiling is not None:
            floors[GOODPUT] = paired(ceiling.odds, control[1], control[0], method, ceiling.parts)[0]
    if not is_biased(floors.get(measure)):
        values, ceiling = averaged(values, control), averaged_ceiling(ceiling, control)
        parts = averaged(parts, control)
    compared = []
    found = [judged(measure, values, *pair, method, ceiling, parts) for pair in pairs]
    for pair, one, p_value in zip(pairs, found, holm([one.p_value for one in found]), strict=True):
        noise_of_pair = floor_between(floors.get(one.by), control, *pair)
        stands = standing(one.interval, p_value, noise_of_pair, measure == "throughput", one.is_tied)
        compared.append(Comparison(*pair, measure, one.interval, p_value, stands, one.by, one.at_deadline))
    return compared, floor


def judged(
    measure: str,
    values: Values,
    label: str,
    baseline: str,
    method: Method = paired_student,
    ceiling: Ceiling | None = None,
    parts: Values = NO_PARTS,
) -> Judged:
    """Compare a pair by the measure, or by goodput if in at least half of its blocks both are at the ceiling."""
    interval, p_value = paired(values, label, baseline, method, parts)
    tied = ceiling.tied(label, baseline) if ceiling is not None else set()
    if ceiling is not None and tied and 2 * len(tied) >= interval.blocks:
        return Judged(GOODPUT, *paired(ceiling.odds, label, baseline, method, ceiling.parts))
    return Judged(measure, interval, p_value, bool(tied), alone_at(ceiling, interval.blocks, label, baseline))


def alone_at(ceiling: Ceiling | None, blocks: int, *labels: str) -> str:
    """The only one of two labels that is at the ceiling in at least half of the blocks; empty if there is none."""
    at = [one for one in labels if ceiling is not None and 2 * len(ceiling.blocks.get(one, ())) >= blocks > 0]
    return at[0] if len(at) == 1 else ""


def averaged(values: Values, control: Control | None) -> Values:
    """Values in which the entry that was run twice has the geometric mean of both runs, where there are both."""
    if control is None or control[0] not in values:
        return values
    first, second = values[control[0]], values.get(control[1], {})
    both = {n: math.sqrt(value * second[n]) if n in second else value for n, value in first.items()}
    return {**values, control[0]: both}


def averaged_ceiling(ceiling: Ceiling | None, control: Control | None) -> Ceiling | None:
    """The same of a ceiling: both runs have to be at it."""
    if ceiling is None or control is None or control[0] not in ceiling.blocks:
        return ceiling
    blocks = {**ceiling.blocks, control[0]: ceiling.tied(*control)}
    return Ceiling(blocks, averaged(ceiling.odds, control), averaged(ceiling.parts, control))


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
    values: Values, label: str, baseline: str, method: Method = paired_student, parts: Values = NO_PARTS
) -> tuple[Interval, float]:
    """Pair two labels over the blocks in which both have a positive, finite value, and over the parts of a replay."""
    ours, theirs = values.get(label, {}), values.get(baseline, {})
    both = [n for n in sorted(ours) if is_comparable(ours[n]) and is_comparable(theirs.get(n))]
    found = method(logarithms([ours[n] for n in both]) - logarithms([theirs[n] for n in both]))
    return as_interval(over_parts(found, parts_between(parts, label, baseline)), len(both))


def parts_between(parts: Values, label: str, baseline: str) -> Floats:
    """Logarithms of the factors of one label over those of another; empty without a replay of both."""
    ours, theirs = parts.get(label), parts.get(baseline)
    if not ours or not theirs:
        return np.empty(0)
    return logarithms(list(ours.values())) - logarithms(list(theirs.values()))


def is_comparable(value: float | None) -> bool:
    """Whether the value has a finite logarithm."""
    return value is not None and math.isfinite(value) and value > 0
