"""Mean, confidence interval and p-value of the logarithms of a few runs.

Everything is in logarithms; an estimate from fewer than two values has no interval. Interval and p-value come from the
same pivot, so they agree: the interval contains 0 exactly where the p-value is 5 % or more. docs/statistics.md explains
why Student's t is used and not a bootstrap. `anytime_student` holds however often it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from experiments.run_data import Floats
from experiments.stats import student

CONFIDENCE = 0.95

EPSILON = 1e-12
"""Absolute logarithm at or below which a value is treated as rounding error."""


class Estimate(NamedTuple):
    """A mean of log ratios with its interval, usually at `CONFIDENCE`, and the two-sided p-value of "the mean is 0"."""

    mean: float
    low: float
    high: float
    p_value: float


EFFECTS = 2.0
"""Variance of the effects that the confidence sequence expects, in variances of a value: it is narrow from eight values
to forty. Another number changes its width, not its coverage.
"""

MAX_HALF_WIDTH = math.log(1e6)
"""Half width from which on a confidence sequence says nothing."""

Method = Callable[[Floats], Estimate]
"""Log ratio of each block -> estimate."""


def paired_student(logs: Floats, confidence: float = CONFIDENCE) -> Estimate:
    """Paired t-test, one value per block: mean over standard error follows t with blocks - 1 degrees (Gosset 1908)."""
    if len(logs) < 2:
        return unknown(float(logs.mean()) if len(logs) else math.nan)
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return from_pivot(float(logs.mean()), error, len(logs) - 1, confidence)


def welch(ours: Floats, theirs: Floats) -> Estimate:
    """Welch's test on independent runs: mean(ours) - mean(theirs), unequal variances (Welch 1947)."""
    if min(len(ours), len(theirs)) < 2:
        both = len(ours) and len(theirs)
        return unknown(float(ours.mean() - theirs.mean()) if both else math.nan)
    parts = [float(side.var(ddof=1)) / len(side) for side in (ours, theirs)]
    spread = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (ours, theirs), strict=True))
    degrees = max(1, int(sum(parts) ** 2 / spread)) if spread else 1
    return from_pivot(float(ours.mean() - theirs.mean()), math.sqrt(sum(parts)), degrees)


def over_parts(found: Estimate, parts: Floats) -> Estimate:
    """The wider of an estimate over blocks and that over `parts` of a record that every block replays.

    `parts` are logarithms of the jackknife's pseudo-values, less their mean.
    """
    if not len(parts):
        return found
    other = paired_student(found.mean + parts) if np.isfinite(parts).all() else unknown(found.mean)
    return max(found, other, key=lambda one: math.inf if math.isnan(one.high) else one.high - one.low)


def from_pivot(mean: float, error: float, degrees: int, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate from a mean and its standard error; without any spread the mean is exact."""
    if error <= EPSILON:
        certain = mean if abs(mean) > EPSILON else 0.0
        return Estimate(certain, certain, certain, 0.0 if certain else 1.0)
    reach = student.quantile(confidence, degrees) * error
    return Estimate(mean, mean - reach, mean + reach, student.beyond(mean / error, degrees))


def anytime_student(logs: Floats) -> Estimate:
    """Confidence sequence for the mean of normal values of unknown variance, and its p-value, valid at every look.

    With t the usual statistic of n values, the Bayes factor of an effect (mean / standard deviation) that is drawn from
    a normal distribution with variance g, against no effect, is

        B = (1 + n g) ** -0.5 * ((1 + t² / (n - 1)) / (1 + t² / ((n - 1) (1 + n g)))) ** (n / 2)

    It is a non-negative martingale without an effect, whatever the variance, so by Ville's inequality it ever exceeds
    1 / α with probability α at most (Lai 1976; Wang and Ramdas 2025). The interval is where B is less.
    """
    count, mean = len(logs), float(logs.mean()) if len(logs) else math.nan
    if count < 2:
        return unknown(mean)
    error = float(logs.std(ddof=1)) / math.sqrt(count)
    if error <= EPSILON:
        return from_pivot(mean, error, count - 1)
    reach = anytime_reach(count) * error
    if reach > MAX_HALF_WIDTH:
        return unknown(mean)
    square, growth = (mean / error) ** 2 / (count - 1), 1 + count * EFFECTS
    evidence = (count * (math.log1p(square) - math.log1p(square / growth)) - math.log(growth)) / 2
    return Estimate(mean, mean - reach, mean + reach, math.exp(-max(0.0, evidence)))


@lru_cache(maxsize=1024)
def anytime_reach(count: int) -> float:
    """Half width of the confidence sequence in standard errors; infinite for few values."""
    growth = 1 + count * EFFECTS
    bound = (math.sqrt(growth) / (1 - CONFIDENCE)) ** (2 / count)
    return math.sqrt((count - 1) * (bound - 1) / (1 - bound / growth)) if bound < growth else math.inf


def unknown(mean: float) -> Estimate:
    """Estimate without an interval, with p-value 1."""
    return Estimate(mean, math.nan, math.nan, 1.0)


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive values, at least one."""
    return math.exp(float(np.mean(np.log(list(values)))))


def logarithms(values: object) -> Floats:
    """Natural logarithms of `values` as an array."""
    return np.asarray(np.log(np.asarray(values, dtype=float)))
