"""Mean of a few blocks in milliseconds, with Student's interval, as in every verdict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.stats.estimates import paired_student


def mean_ms(seconds: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Mean and its 95 % interval, in milliseconds, of one value per block; values may be negative."""
    found = paired_student(1e3 * np.asarray(seconds))
    return found.mean, (found.low, found.high)
