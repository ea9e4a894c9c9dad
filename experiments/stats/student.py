"""Student's t distribution.

Closed forms for integer degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4), so that no statistics package is
needed. Callers round fractional degrees down, which is conservative.
"""

from __future__ import annotations

import math
from functools import lru_cache

MAX_QUANTILE = 1e6
"""Upper end of the bisection; it covers one degree of freedom at 99.99994 %."""


def beyond(t: float, degrees: int) -> float:
    """Two-sided probability that |T| exceeds |t|. `degrees` is at least 1."""
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    is_odd = degrees % 2
    term = math.cos(angle) if is_odd else 1.0
    total = term if degrees > 1 else 0.0
    for step in range(2 + is_odd, degrees - 1, 2):
        term *= square * (step - 1) / step
        total += term
    within = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return max(0.0, 1.0 - within)


@lru_cache(maxsize=256)
def quantile(confidence: float, degrees: int) -> float:
    """The t that |T| stays below with probability `confidence` (0..1), by bisection."""
    low, high = 0.0, MAX_QUANTILE
    while high - low > 1e-12 * high and high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle, degrees) > 1 - confidence else (low, middle)
    return (low + high) / 2
