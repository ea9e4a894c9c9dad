"""Student's t, Welch's test and their alternatives: printed tables, and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.calibration.methods import METHODS
from experiments.stats import student
from experiments.stats.estimates import anytime_reach, anytime_student, over_parts, paired_student, welch

SAMPLE = np.array([0.11, 0.04, 0.09, 0.16, -0.02, 0.10, 0.07, 0.05])


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (1, 12.706205),
        (2, 4.302653),
        (3, 3.182446),
        (7, 2.364624),
        (8, 2.306004),
        (30, 2.042272),
        (99, 1.984217),
    ],
)
def test_quantiles_of_student_s_t(degrees: int, expected: float) -> None:
    """Two-sided 95 %, from printed tables."""
    assert student.quantile(0.95, degrees) == pytest.approx(expected, abs=1e-6)


@given(st.floats(0, 50), st.integers(1, 60))
def test_tail_probability_falls_with_t(t: float, degrees: int) -> None:
    """It starts at one and is symmetric."""
    assert 0 <= student.beyond(t + 0.1, degrees) <= student.beyond(t, degrees) + 1e-15 <= 1 + 1e-15
    assert student.beyond(-t, degrees) == student.beyond(t, degrees)
    assert student.beyond(0.0, degrees) == 1.0


def test_many_degrees_of_freedom_approach_the_normal_distribution() -> None:
    """1.96 at 95 %."""
    assert student.quantile(0.95, 4000) == pytest.approx(1.96, abs=1e-3)


def test_paired_estimate() -> None:
    """Mean 0.075, standard deviation 0.0540, 7 degrees: t = 3.93."""
    found = paired_student(SAMPLE)
    error = float(SAMPLE.std(ddof=1)) / math.sqrt(8)
    assert found.mean == pytest.approx(0.075)
    assert found.high - found.mean == pytest.approx(2.364624 * error, rel=1e-6)
    assert found.p_value == pytest.approx(student.beyond(0.075 / error, 7))
    assert 0.005 < found.p_value < 0.006


def test_welch_estimate() -> None:
    """Unequal variances, 3 and 5 values: 5.07 degrees of freedom are rounded to five."""
    ours, theirs = np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.5, 2.0, 2.5, 3.0])
    found = welch(ours, theirs)
    error = math.sqrt(1 / 3 + 0.625 / 5)
    assert found.mean == 0.0
    assert found.p_value == 1.0
    degrees = error**4 / ((1 / 3) ** 2 / 2 + (0.625 / 5) ** 2 / 4)
    assert found.high == pytest.approx(student.quantile(0.95, int(degrees)) * error)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30))
def test_interval_and_p_value_agree(logs: list[float]) -> None:
    """Zero lies outside of the interval exactly where p is under 5 %."""
    found = paired_student(np.array(logs))
    if abs(found.p_value - 0.05) > 1e-6:
        assert (found.p_value < 0.05) == (not found.low <= 0 <= found.high)


def test_a_mean_without_spread_is_exact() -> None:
    """A simulator gives the same ratio in each block where nothing is drawn."""
    same, twice = paired_student(np.zeros(8)), paired_student(np.full(8, 0.7))
    assert (same.low, same.high, same.p_value) == (0.0, 0.0, 1.0)
    assert list(twice) == pytest.approx([0.7, 0.7, 0.7, 0.0])
    assert welch(np.ones(4), np.ones(3)).p_value == 1.0


def bayes_factor(logs: list[float], variance: float) -> float:
    """Normal values with unknown deviation, effect drawn from N(0, variance), against no effect: by quadrature.

    Both likelihoods are integrated over the deviation with the prior 1 / deviation.
    """
    sigma = np.exp(np.linspace(-9, 4, 1500))[:, None]
    delta = np.linspace(-30, 30, 3001)[None, :]
    values = np.array(logs)
    square = np.sum(values**2) / sigma**2 - 2 * delta * np.sum(values) / sigma + len(values) * delta**2
    prior = np.exp(-(delta**2) / variance / 2) / math.sqrt(2 * math.pi * variance)
    of_sigma = sigma ** -len(values)  # the prior 1 / sigma is uniform on the grid of logarithms
    effect = np.sum(of_sigma * np.exp(-square / 2) * prior) * (delta[0, 1] - delta[0, 0])
    none = np.sum(of_sigma * np.exp(-np.sum(values**2) / sigma**2 / 2))
    return float(effect / none)


@pytest.mark.parametrize("shift", [0.0, 0.05, -0.02])
def test_the_confidence_sequence_inverts_a_bayes_factor(shift: float) -> None:
    """Its p-value is the reciprocal, and at its ends it is 5 %."""
    logs = SAMPLE + shift
    found = anytime_student(logs)
    assert found.p_value == pytest.approx(min(1.0, 1 / bayes_factor(logs.tolist(), 2.0)), rel=1e-3)
    for end in (found.low, found.high):
        assert anytime_student(logs - end).p_value == pytest.approx(0.05)


def test_the_confidence_sequence_is_wider_than_one_interval() -> None:
    """By three quarters with eight values and two thirds with forty; with three it says nothing."""
    factors = [anytime_reach(count) / student.quantile(0.95, count - 1) for count in (8, 40)]
    assert factors == pytest.approx([1.75, 1.70], abs=0.01)
    assert math.isnan(anytime_student(SAMPLE[:3]).low)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_values_have_no_interval(count: int) -> None:
    for found in (paired_student(np.ones(count)), welch(np.ones(count), np.ones(5))):
        assert math.isnan(found.low)
        assert found.p_value == 1.0


@pytest.mark.parametrize("name", METHODS)
def test_all_methods_agree_on_clear_cases(name: str) -> None:
    """Eight blocks far from zero are a difference for all, symmetric ones around it for none; a seed repeats."""
    method = METHODS[name]
    assert method(SAMPLE + 1, 1).p_value < 0.01
    assert method(np.array([-3.0, -1, -2, 3, 1, 2, 0.5, -0.5]), 1).p_value > 0.5
    assert method(SAMPLE, 7) == method(SAMPLE, 7)
    assert method(SAMPLE, 1).mean == pytest.approx(0.075)
    assert method(np.zeros(8), 1).p_value == 1.0


def test_sign_patterns_are_enumerated_for_few_blocks() -> None:
    """Eight blocks of one sign: two patterns of 256 are as extreme."""
    assert METHODS["sign-flip"](np.full(8, 0.1) + SAMPLE / 100, 1).p_value == pytest.approx(2 / 256)


def test_the_percentile_interval_is_too_short() -> None:
    """By the standard error with n instead of n - 1, and a normal quantile instead of Student's: by 22 %."""
    old, new = METHODS["percentile"](SAMPLE, 1), METHODS["student"](SAMPLE, 1)
    assert (old.high - old.low) / (new.high - new.low) == pytest.approx(
        1.96 * math.sqrt(7 / 8) / 2.3646, abs=0.03
    )


def test_the_wider_of_blocks_and_parts_counts() -> None:
    """Blocks alike have the interval over parts, around the same mean; parts that are not known leave no interval."""
    alike, parts = paired_student(np.full(8, 0.7)), np.array([-0.1, 0.0, 0.1])
    found = over_parts(alike, parts)
    assert found == paired_student(0.7 + parts)
    assert found.low < 0.7 < found.high
    spread = paired_student(np.array([0.0, 1.4]))
    assert over_parts(spread, parts) == spread
    assert over_parts(alike, np.empty(0)) == alike
    for one, of in [(alike, np.full(3, math.nan)), (paired_student(np.ones(1)), parts)]:
        assert math.isnan(over_parts(one, of).low)
        assert over_parts(one, of).p_value == 1
