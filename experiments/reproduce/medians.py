"""Median with a bootstrap confidence interval. Pure; the seed is fixed, so equal values have equal intervals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

RESAMPLES = 2000


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the median, by percentile bootstrap with a fixed seed."""
    rng = np.random.default_rng(1)
    drawn = rng.choice(np.array(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)


def median_ms(seconds: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median and its interval, in milliseconds."""
    millis = [1e3 * one for one in seconds]
    return median(millis), interval(millis)
