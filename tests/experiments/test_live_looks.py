"""`experiments live`, looked at after every period: false verdicts on equal policies, and a difference found."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calibration.rates import Rate
from experiments.run_data import Floats
from experiments.stats.comparison import ENOUGH_BLOCKS, compare_pairs
from experiments.stats.estimates import Method, anytime_student, paired_student

LABELS = ("a", "b", "c")
BLOCKS = 40
NOISE = 0.06
"""Standard deviation of the logarithm of a period's p99, as 60,000 requests of a queue at 70 % load have it."""


def campaign(seed: int, planted: float = 1.0, tailed: bool = False) -> list[tuple[str, int, float]]:
    """Periods in order: label, block and p99. The traffic drifts by a random walk; `b` is slower by `planted`.

    `tailed`: the noise is Student's t with four degrees of freedom, scaled to the same spread.
    """
    rng = np.random.default_rng(seed)
    count = BLOCKS * len(LABELS)
    drift: Floats = np.cumsum(rng.normal(0, 0.02, count))
    noise = rng.standard_t(4, count) / np.sqrt(2) if tailed else rng.normal(0, 1, count)
    turns = [(block, place) for block in range(BLOCKS) for place in rng.permutation(len(LABELS))]
    logs = drift + NOISE * noise
    return [
        (LABELS[place], block, float(np.exp(log)) * (planted if place == 1 else 1.0))
        for (block, place), log in zip(turns, logs, strict=True)
    ]


def first_verdict(periods: list[tuple[str, int, float]], method: Method) -> tuple[int, dict[str, str]] | None:
    """Block and standings of the first look, one after each period, in which a policy is ranked; None if none is."""
    values: dict[str, dict[int, float]] = {label: {} for label in LABELS}
    for label, block, p99 in periods:
        values[label][block] = p99
        if block + 1 < ENOUGH_BLOCKS:
            continue
        compared, _ = compare_pairs("p99", values, [("b", "a"), ("c", "a")], method)
        found = {one.label: one.standing for one in compared}
        if {"ahead", "behind"} & set(found.values()):
            return block + 1, dict(found)
    return None


@pytest.mark.second_tier
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tailed", [False, True])
def test_stopping_at_the_first_verdict_is_false_in_at_most_5_percent(tailed: bool) -> None:
    """400 evaluations of equal policies, looked at after each period. Student's interval is for one look only."""
    made = [campaign(seed, tailed=tailed) for seed in range(400)]
    false = Rate(sum(first_verdict(one, anytime_student) is not None for one in made), 400)
    assert false.value <= 0.05
    once = Rate(sum(first_verdict(one, paired_student) is not None for one in made[:200]), 200)
    assert once.interval[0] > 0.05


@pytest.mark.second_tier
@pytest.mark.timeout(120)
def test_a_difference_of_10_percent_is_found() -> None:
    """In at least four of five evaluations of forty blocks, half of them by sixteen; only `b` is ranked."""
    found = [first_verdict(campaign(seed, planted=1.10), anytime_student) for seed in range(200)]
    stopped = [one for one in found if one is not None and one[1]["b"] == "behind"]
    assert Rate(len(stopped), 200).value >= 0.80
    assert float(np.median([block for block, _ in stopped])) <= 20
    assert Rate(sum(one[1]["c"] in ("ahead", "behind") for one in stopped), 200).value <= 0.05
