"""Comparison of two result sets, entry by entry: ratio of second to first, confidence interval, standing.

Blocks are paired if their seeds agree, otherwise Welch's interval is taken over all runs of both sets. Holm's
adjustment is over the entries of one measure; the repetition of an A/A pair and oracles, which nobody can run, are
left out. Where a latency is the deadline in at least half of the blocks of both,
the odds of a late or failed answer are compared instead. The A/A pair of a measured set is the
noise floor of its own entry; it does not cover other changes between the sets, which `sides.differences` lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from experiments.compare.sides import Side, common_labels
from experiments.scenario.service import LiveScenario
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import (
    Interval,
    Standing,
    as_interval,
    holm,
    is_comparable,
    noise,
    paired_interval,
    parts_between,
    standing,
)
from experiments.stats.estimates import geometric_mean, logarithms, over_parts, paired_student, welch
from experiments.stats.run_summary import parts_per_label
from experiments.verdict.contest import deciding, supports_tail
from experiments.verdict.contest import measures_of as compared_measures
from experiments.verdict.disturbed import has_lag, standing_with

WORDS: dict[Standing, str] = {"ahead": "better", "behind": "worse"}


@dataclass(frozen=True, slots=True)
class Contrast:
    """One entry in one measure. `first` and `second` are geometric means over the compared blocks.

    `judged_by` is the measure, or `GOODPUT` where `interval` is a ratio of odds. `is_tied`: the deadline in a block.
    """

    label: str
    measure: str
    first: float
    second: float
    interval: Interval
    p_value: float
    standing: Standing
    is_paired: bool
    judged_by: str
    is_tied: bool

    @property
    def in_words(self) -> str:
        """Standing of the second set, with `better` and `worse`."""
        return WORDS.get(self.standing, self.standing)

    @property
    def worsening(self) -> float:
        """Factor by which the second set is worse; below one it is better."""
        return 1 / self.interval.ratio if self.measure == "throughput" else self.interval.ratio


def contrasts(one: Side, other: Side) -> list[Contrast]:
    """Every common entry in every measure, the deciding measure first."""
    return [found for measure in measures_of(one, other) for found in of(measure, one, other)]


def measures_of(one: Side, other: Side) -> list[str]:
    """Measures to compare, the deciding one first; no p99 where runs of either side have too few requests for it."""
    has_tail = supports_tail((*one.runs, *other.runs))
    own = deciding(one.scenario.measure, has_tail)
    is_live = any(isinstance(each.scenario, LiveScenario) for each in (one, other))
    return sorted(compared_measures(is_live, has_tail), key=lambda each: each != own)


def of(measure: str, one: Side, other: Side) -> list[Contrast]:
    """All entries in one measure; what is claimed must also hold without the generator's lag."""
    found = adjusted(measure, one, other)
    if not has_lag((*one.runs, *other.runs)):
        return found
    lagless = adjusted(measure, replace(one, lagless=True), replace(other, lagless=True))
    return [
        replace(item, standing=standing_with(item.standing, less.standing))
        for item, less in zip(found, lagless, strict=True)
    ]


def adjusted(measure: str, one: Side, other: Side) -> list[Contrast]:
    """All entries in one measure, with adjusted p-values."""
    found = [contrast(label, measure, one, other) for label in common_labels(one, other)]
    floors = [floor_of_both(one, other, item.judged_by, item.label) for item in found]
    p_values = holm([item.p_value for item in found])
    is_rate = measure == "throughput"
    return [
        replace(
            item,
            p_value=p_value,
            standing=standing(item.interval, p_value, floor, is_rate, item.is_tied),
        )
        for item, p_value, floor in zip(found, p_values, floors, strict=True)
    ]


def contrast(label: str, measure: str, one: Side, other: Side) -> Contrast:
    """One entry in one measure, before adjustment."""
    ours, theirs = usable(one.values(label, measure)), usable(other.values(label, measure))
    pairs = [n for n in ours if n in theirs and one.seeds[n] == other.seeds[n]]
    is_like = 0 < len(pairs) >= min(2, len(ours), len(theirs))  # of many runs a single pair is chance
    is_paired = is_like and not isinstance(one.scenario, LiveScenario)  # whose seed orders only
    if is_paired:
        ours, theirs = ({n: values[n] for n in pairs} for values in (ours, theirs))
    first, second = (geometric_mean(values.values()) if values else math.nan for values in (ours, theirs))
    ceilings = [side.ceiling(label, measure) for side in (one, other)]
    at = [ceiling.blocks[label] for ceiling in ceilings]
    tied = len(set(pairs) & at[0] & at[1]) if is_paired else min(map(len, at))
    is_at_ceiling = tied > 0 and 2 * tied >= max(len(ours), len(theirs))
    if is_at_ceiling:
        ours, theirs = (usable(ceiling.odds[label]) for ceiling in ceilings)
    by = GOODPUT if is_at_ceiling else measure
    if is_paired:
        found = paired_student(logarithms([theirs[n] for n in pairs]) - logarithms([ours[n] for n in pairs]))
    else:
        found = welch(logarithms(list(theirs.values())), logarithms(list(ours.values())))
    factors = [parts_per_label([label], side.runs, by).get(label, {}) for side in (one, other)]
    parts = parts_between(dict(zip(("one", "other"), factors, strict=True)), "other", "one")
    runs = len(pairs) if is_paired else min(len(ours), len(theirs))
    interval, p_value = as_interval(over_parts(found, parts), runs)
    is_tied = tied > 0 and not is_at_ceiling
    return Contrast(label, measure, first, second, interval, p_value, "no verdict", is_paired, by, is_tied)


def usable(values: Mapping[int, float]) -> dict[int, float]:
    """Values whose logarithm is defined."""
    return {block: value for block, value in sorted(values.items()) if is_comparable(value)}


def floor_of_both(one: Side, other: Side, measure: str, label: str) -> Interval | None:
    """The larger noise floor of an entry in the two sets; None if neither has one."""
    floors = [floor_of(side, measure, label) for side in (one, other)]
    return max((floor for floor in floors if floor is not None), key=noise, default=None)


def floor_of(side: Side, measure: str, label: str) -> Interval | None:
    """Noise floor of an entry in a set: interval of its A/A pair, if it was run twice in at least two blocks."""
    pair = side.scenario.control_pair
    if pair is None or pair[0] != label or side.results.campaign.world == "simulated":
        return None
    ours, theirs = (usable(side.values(label, measure)) for label in pair)
    both = [block for block in ours if block in theirs]
    floor, _ = paired_interval([theirs[n] for n in both], [ours[n] for n in both])
    return floor if floor.blocks >= 2 else None
