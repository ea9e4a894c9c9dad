"""Medians and how sure they are.

Rule of this file: pure. The seed is fixed, so the same values have the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 2000


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the median, by bootstrap."""
    rng = np.random.default_rng(1)
    drawn = rng.choice(np.array(values), (DRAWS, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)
