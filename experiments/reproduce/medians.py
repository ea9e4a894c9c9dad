"""Median with a bootstrap confidence interval. Pure; the seed is fixed, so equal values have equal intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 2000


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the median, by percentile bootstrap with `DRAWS` resamples."""
    rng = np.random.default_rng(1)
    drawn = rng.choice(np.array(values), (DRAWS, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)
