"""Paired comparisons: effects are found, noise is not, and few blocks give no verdict."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.stats.comparison import (
    Interval,
    average,
    compare_pairs,
    floor_between,
    holm,
    is_biased,
    noise,
    paired_interval,
    standing,
    typical,
)


def blocks(center: float, spread: float, count: int = 8, seed: int = 0) -> dict[int, float]:
    """`count` values around `center`, reproducible."""
    rng = np.random.default_rng(seed)
    return {block: center * math.exp(rng.normal(0, spread)) for block in range(count)}


def test_the_ratio_is_a_geometric_mean_over_pairs() -> None:
    """Twice as much in each block is × 2 with an interval of no width, however the blocks vary."""
    interval, _ = paired_interval([2.0, 8.0, 20.0], [1.0, 4.0, 10.0])
    assert (interval.ratio, interval.low, interval.high) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]), ([0.5], [0.5]), ([0.9, 0.8], [1.0, 1.0]), ([], [])],
)
def test_holm_adjustment(given_: list[float], expected: list[float]) -> None:
    """The smallest p-value is multiplied most, the order is kept, and none exceeds one."""
    assert holm(given_) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_lowers_a_p_value(p_values: list[float]) -> None:
    assert all(after >= before for before, after in zip(p_values, holm(p_values), strict=True))


@pytest.mark.parametrize(
    ("interval", "p_value", "floor", "more_is_better", "expected"),
    [
        (Interval(2.0, 1.9, 2.1, 7), 0.001, None, True, "no verdict"),
        (Interval(2.0, 1.9, 2.1, 8), 0.001, None, True, "ahead"),
        (Interval(2.0, 1.9, 2.1, 8), 0.001, None, False, "behind"),
        (Interval(0.5, 0.4, 0.6, 8), 0.001, None, False, "ahead"),
        (Interval(1.01, 0.97, 1.04, 8), 0.5, None, True, "practically equal"),
        (Interval(1.2, 0.9, 1.6, 8), 0.2, None, True, "undecided"),
        (Interval(1.2, 1.1, 1.3, 8), 0.2, None, True, "undecided"),
        (Interval(1.1, 1.06, 1.14, 8), 0.001, Interval(1.0, 0.88, 1.14, 8), True, "ahead"),
        (Interval(1.1, 1.06, 1.14, 8), 0.001, Interval(1.2, 1.12, 1.3, 8), True, "within the noise floor"),
        (Interval(1.1, 1.06, 1.14, 8), 0.001, Interval(0.8, 0.7, 0.89, 8), True, "within the noise floor"),
        (Interval(1.3, 1.2, 1.4, 8), 0.001, Interval(1.2, 1.12, 1.3, 8), True, "ahead"),
    ],
)
def test_standing_by_interval_and_noise_floor(
    interval: Interval, p_value: float, floor: Interval | None, more_is_better: bool, expected: str
) -> None:
    """Ahead or behind only with eight blocks, a significant p-value, and an interval beyond one and the noise floor."""
    assert standing(interval, p_value, floor, more_is_better) == expected


def test_an_entry_that_was_run_twice_is_the_mean_of_both_runs() -> None:
    """Its noise is that of two runs, and without a proven bias there is no noise floor."""
    first, second = blocks(1.0, 0.05, seed=1), blocks(1.0, 0.05, seed=2)
    values = {"a": first, "b": blocks(1.3, 0.05, seed=3), "a again": second}
    (found,), floor = compare_pairs("p99", values, [("b", "a")], control=("a", "a again"))
    mean = {n: math.sqrt(first[n] * second[n]) for n in first}
    assert found.interval == compare_pairs("p99", {"a": mean, "b": values["b"]}, [("b", "a")])[0][0].interval
    assert floor is not None
    assert (is_biased(floor), noise(floor)) == (False, 0.0)
    assert floor_between(floor, ("a", "a again"), "b", "a") is None


def test_a_bias_is_that_of_pairs_with_the_repeated_entry_in_real_time() -> None:
    """`a` differs by a fifth from itself: b and c, which are not run twice, are ranked, and all in virtual time.

    Its two runs are not averaged: the repetition is the noise floor only, in full.
    """
    values = {
        name: blocks(center, 0.01, seed=n) for n, (name, center) in enumerate({"b": 1.15, "c": 1.0}.items())
    }
    values |= {"a": blocks(1.0, 0.01, seed=8), "a again": blocks(1.2, 0.01, seed=9)}
    pairs = [("b", "c"), ("b", "a")]
    found, _ = compare_pairs("p99", values, pairs, control=("a", "a again"))
    assert [one.standing for one in found] == ["behind", "within the noise floor"]
    plain, _ = compare_pairs("p99", {name: values[name] for name in "ab"}, [("b", "a")])
    assert found[1].interval == plain[0].interval
    virtual, _ = compare_pairs("p99", values, pairs, control=("a", "a again"), is_virtual=True)
    assert [one.standing for one in virtual] == ["behind", "behind"]


def test_only_common_blocks_are_compared() -> None:
    values = {"a": blocks(100, 0.01), "b": {0: 50.0, 3: 50.0, 9: 50.0}}
    (found,), _ = compare_pairs("p99", values, [("b", "a")])
    assert found.interval.blocks == 2
    assert found.standing == "no verdict"


def test_false_positives_are_rare() -> None:
    """Of 60 entries drawn like the baseline, with 20 % noise, Holm's adjustment lets hardly any through."""
    values = {f"e{n}": blocks(100, 0.2, seed=n) for n in range(61)}
    found, _ = compare_pairs("p99", values, [(label, "e0") for label in values if label != "e0"])
    assert sum(comparison.standing in ("ahead", "behind") for comparison in found) <= 3


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.second_tier), 8])
def test_the_interval_of_figures_and_ratios_misses_the_truth_in_5_percent(count: int) -> None:
    """20,000 sets of lognormal figures around 3 and of normal ones around −2: 5 % ± 0.5 % (three deviations) miss."""
    rng = np.random.default_rng(count)
    logs, draws = rng.normal(math.log(3), 0.1, (20_000, count)), 20_000
    found = [typical(row) for row in np.exp(logs)]
    plain = [average(row) for row in rng.normal(-2.0, 0.5, (20_000, count))]
    assert sum(not one.low <= 3 <= one.high for one in found) / draws == pytest.approx(0.05, abs=0.005)
    assert sum(not one.low <= -2 <= one.high for one in plain) / draws == pytest.approx(0.05, abs=0.005)
