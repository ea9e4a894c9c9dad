"""One rule by which all reproductions judge their bounds: on which side of a bound the interval of a figure is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from experiments.platform.session import BoundVerdict
from experiments.stats.comparison import Interval, typical

Form = Callable[[float], str]
"""Format of a figure as text."""


def judged(
    found: Interval, least: float = -math.inf, most: float = math.inf, is_busy: bool = False
) -> bool | None:
    """Whether a figure is between `least` and `most`: None unless its whole interval is, or none of it.

    Other load on a busy machine only adds time, so a missed bound of time is not judged there.
    """
    if least < found.low and found.high < most:
        return True
    is_outside = found.high < least or found.low > most
    return False if is_outside and not is_busy else None


def all_met(parts: Iterable[bool | None]) -> bool | None:
    """Verdict on a bound of several figures: False if one misses it, None if one is not judged."""
    found = set(parts)
    return False if False in found else None if None in found else True


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Ratio of two figures, paired by block or seed, as far as both were measured."""
    return typical([one / other for one, other in zip(above, below, strict=False)])


def written(found: Interval, form: Form) -> str:
    """Mean and interval as text; without an interval the mean alone."""
    if math.isnan(found.low):
        return form(found.ratio)
    return f"{form(found.ratio)} [{form(found.low)}, {form(found.high)}]"


def figure_verdict(
    subject: str,
    bound: str,
    found: Interval,
    shown: Form | str,
    least: float = -math.inf,
    most: float = math.inf,
    is_busy: bool = False,
) -> BoundVerdict:
    """Verdict on one figure; `shown` is its format or its text."""
    text = shown if isinstance(shown, str) else written(found, shown)
    return BoundVerdict(subject, bound, judged(found, least, most, is_busy), text)


def failures_verdict(subject: str, failed: int, calls: int) -> BoundVerdict:
    return BoundVerdict(subject, "none fails", failed == 0, f"{failed} of {calls}")
