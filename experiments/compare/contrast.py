"""Comparison of two result sets, entry by entry: ratio of second to first, confidence interval, standing.

Blocks are paired if their seeds agree, otherwise Welch's interval is taken over all runs of both sets. Holm's
adjustment is over the entries of one measure. A/A pairs within either set are the noise floor; they do not cover other
changes between the sets, which `sides.differences` lists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from experiments.compare.sides import Side, common_labels
from experiments.results.contest import MEASURES, deciding, supports_tail
from experiments.scenario.scenario import Measure
from experiments.stats.comparison import (
    Interval,
    Standing,
    as_interval,
    holm,
    is_comparable,
    noise,
    paired_interval,
    standing,
)
from experiments.stats.estimates import geometric_mean, logarithms, welch

WORDS: dict[Standing, str] = {"ahead": "better", "behind": "worse"}


@dataclass(frozen=True, slots=True)
class Contrast:
    """One entry in one measure. `first` and `second` are geometric means of the two sets."""

    label: str
    measure: str
    first: float
    second: float
    interval: Interval
    p_value: float
    standing: Standing
    is_paired: bool

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


def measures_of(one: Side, other: Side) -> list[Measure]:
    """Measures to compare, the deciding one first; no p99 where runs of either side have too few requests for it."""
    has_tail = supports_tail((*one.runs, *other.runs))
    own = deciding(one.scenario.measure, has_tail)
    return sorted((each for each in MEASURES if each != "p99" or has_tail), key=lambda each: each != own)


def of(measure: str, one: Side, other: Side) -> list[Contrast]:
    """All entries in one measure, with adjusted p-values."""
    found = [contrast(label, measure, one, other) for label in common_labels(one, other)]
    floors = [floor for floor in (floor_of(one, measure), floor_of(other, measure)) if floor is not None]
    floor = max(floors, key=noise, default=None)
    adjusted = holm([item.p_value for item in found])
    return [
        replace(
            item, p_value=p_value, standing=standing(item.interval, p_value, floor, measure == "throughput")
        )
        for item, p_value in zip(found, adjusted, strict=True)
    ]


def contrast(label: str, measure: str, one: Side, other: Side) -> Contrast:
    """One entry in one measure, before adjustment."""
    ours, theirs = usable(one.values(label, measure)), usable(other.values(label, measure))
    pairs = [n for n in ours if n in theirs and one.seeds[n] == other.seeds[n]]
    is_paired = len(pairs) >= 2
    if is_paired:
        interval, p_value = paired_interval([theirs[n] for n in pairs], [ours[n] for n in pairs])
    else:
        sides = (logarithms(list(theirs.values())), logarithms(list(ours.values())))
        interval, p_value = as_interval(welch(*sides), min(len(ours), len(theirs)))
    first, second = (geometric_mean(values.values()) if values else math.nan for values in (ours, theirs))
    return Contrast(label, measure, first, second, interval, p_value, "no verdict", is_paired)


def usable(values: dict[int, float]) -> dict[int, float]:
    """Values whose logarithm is defined."""
    return {block: value for block, value in sorted(values.items()) if is_comparable(value)}


def floor_of(side: Side, measure: str) -> Interval | None:
    """Noise floor of a set: interval of its A/A pair, if it has one with at least two blocks."""
    pair = side.scenario.control_pair
    if pair is None:
        return None
    ours, theirs = (usable(side.values(label, measure)) for label in pair)
    both = [block for block in ours if block in theirs]
    floor, _ = paired_interval([theirs[n] for n in both], [ours[n] for n in both])
    return floor if floor.blocks >= 2 else None
