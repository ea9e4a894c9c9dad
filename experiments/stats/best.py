"""Multiple comparisons with the best (Hsu 1981; both sides: Edwards and Hsu 1983), on paired logarithms.

The best is not known: it is chosen from the same blocks that compare the others with it. With k labels, all differences
from the true best, whichever it is, lie within their Student intervals at once with probability 95 %, if each of the
k - 1 has an error of 5 % / (k - 1) (Bonferroni; variances may differ). A label whose interval with another candidate
lies wholly above 1 is then not the best, and those that are left, the contenders, include the best. The distance of a
label from the best lies between the least lower and the greatest upper end of its intervals with contenders.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from experiments.stats.ceiling import Ceiling
from experiments.stats.comparison import SIGNIFICANCE, Interval, Values, paired
from experiments.stats.estimates import paired_student


@dataclass(frozen=True, slots=True)
class Distance:
    """Ratio of a label to the best: `ratio` to the observed best, and the interval of that to the true one.

    `is_contender`: it may be the best. `is_tied`: the measure is the deadline for it and a contender in a block.
    """

    ratio: Interval
    is_contender: bool
    is_tied: bool


def distances(
    values: Values,
    candidates: Collection[str],
    observed: str,
    ceiling: Ceiling | None = None,
) -> dict[str, Distance]:
    """Compare every label in `values`, of which less is better, with the best of the `candidates`.

    `observed` is the observed best of them. Other labels may be better than the best.
    """
    confidence = 1 - SIGNIFICANCE / max(1, len(values) - 1)
    method = partial(paired_student, confidence=confidence)
    pairs = {
        (label, other): paired(values, label, other, method)[0]
        for label in values
        for other in candidates
        if other != label
    }
    contenders = [
        label
        for label in candidates
        if not any(pairs[label, other].low > 1 for other in candidates if other != label)
    ]
    found = {}
    for label in values:
        others = [pairs[label, other] for other in contenders if other != label]
        is_contender = label in contenders
        low, high = (
            (min(one.low for one in others), max(one.high for one in others)) if others else (1.0, 1.0)
        )
        if any(math.isnan(one.low) for one in others):
            low = high = math.nan
        elif label in candidates:
            low, high = (1.0 if is_contender else max(1.0, low)), max(1.0, high)
        ratio = Interval(1.0, 1.0, 1.0, len(values[label])) if label == observed else pairs[label, observed]
        is_tied = ceiling is not None and any(ceiling.tied(label, one) for one in contenders if one != label)
        found[label] = Distance(Interval(ratio.ratio, low, high, ratio.blocks), is_contender, is_tied)
    return found
