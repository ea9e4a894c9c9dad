"""Multiple comparisons with the best: coverage, false claims, and what a claim takes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from benchmarks.calibration.rates import Rate
from experiments.stats.best import Distance, distances
from experiments.stats.ceiling import Ceiling

LABELS = tuple("abcdef")
CAMPAIGNS = 500


def drawn(seed: int, true: Mapping[str, float], noise: float = 0.06) -> dict[str, dict[int, float]]:
    """Eight values around each true one: a factor common to a block, and log-normal noise, for `a` thrice as much."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0, 0.3, 8)
    return {
        label: {
            block: value * math.exp(common[block] + rng.normal(0, noise * (3 if label == "a" else 1)))
            for block in range(8)
        }
        for label, value in true.items()
    }


def found(values: dict[str, dict[int, float]]) -> dict[str, Distance]:
    means = {label: float(np.mean(np.log([*of.values()]))) for label, of in values.items()}
    return distances(values, list(values), min(means, key=means.__getitem__))


def contenders(made: Mapping[str, Distance]) -> set[str]:
    return {label for label, one in made.items() if one.is_contender}


@pytest.mark.parametrize(
    "step", [0.01, *(pytest.param(n, marks=pytest.mark.second_tier) for n in (0.0, 0.04))]
)
def test_intervals_cover_the_ratio_to_the_true_best(step: float) -> None:
    """For all labels at once in at least 95 % of campaigns, although the best is chosen from the same blocks; so the
    true best is excluded in at most 5 %.
    """
    true = {label: math.exp(step * place) for place, label in enumerate(LABELS)}
    covered = 0
    for seed in range(CAMPAIGNS):
        made = found(drawn(seed, true))
        covered += made["a"].is_contender and all(
            made[label].ratio.low <= value <= made[label].ratio.high for label, value in true.items()
        )
    assert Rate(covered, CAMPAIGNS).value >= 0.95


def test_a_clear_best_is_the_only_contender() -> None:
    """30 % over 6 % noise, in most campaigns of eight blocks."""
    true = dict.fromkeys(LABELS, 1.3) | {"b": 1.0, "a": 2.0}
    made = [found(drawn(seed, true)) for seed in range(200)]
    assert Rate(sum(contenders(one) == {"b"} for one in made), 200).value >= 0.8
    assert made[0]["b"].ratio.ratio == 1.0


def test_a_label_that_cannot_be_the_best_may_be_better() -> None:
    """An oracle is compared with the best of the others; ties at the deadline are told."""
    values = drawn(1, {"b": 1.0, "c": 1.3, "oracle": 0.5}, noise=0.01)
    made = distances(values, ["b", "c"], "b", Ceiling({"b": {0}, "c": {0}}, {}))
    assert contenders(made) == {"b"}
    assert made["oracle"].ratio.high < 0.6
    assert {label: one.is_tied for label, one in made.items()} == {"b": False, "c": True, "oracle": False}


def test_one_block_has_a_ratio_and_no_interval() -> None:
    made = distances({"a": {0: 1.0}, "b": {0: 2.0}}, ["a", "b"], "a")
    assert made["b"].ratio.ratio == pytest.approx(2.0)
    assert math.isnan(made["b"].ratio.high)
