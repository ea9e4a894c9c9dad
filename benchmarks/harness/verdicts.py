"""Figures of a benchmark over its blocks, and on which side of a bound they lie.

Within a block every side runs once, in random order; ratios are computed within a block, under equal machine load.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from random import Random
from typing import TypeVar

from experiments.stats.comparison import Interval, typical


def side_of(found: Interval | None, limit: float, is_least: bool = False) -> bool | None:
    """Whether a figure is at most `limit`, or at least if `is_least`; None unless its whole interval is on one side."""
    if found is None:
        return None
    if is_least:
        return True if found.low >= limit else False if found.high < limit else None
    return True if found.high <= limit else False if found.low > limit else None


def over_blocks(ratios: Sequence[float]) -> Interval | None:
    """Geometric mean and its interval; None without ratios."""
    return typical(ratios) if ratios else None


def bracketed(found: Interval | None, unit: str = " ×") -> str:
    """Text such as `1.85 × [1.80–1.90]`, without an interval for a single block; a dash for None."""
    if found is None:
        return "–"
    span = f" [{found.low:.2f}–{found.high:.2f}]" if found.blocks > 1 else ""
    return f"{found.ratio:.2f}{unit}{span}"


T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


def shuffled_blocks(sides: Sequence[T], blocks: int, rng: Random) -> list[list[T]]:
    """Order of the sides in each block."""
    return [rng.sample(sides, len(sides)) for _ in range(blocks)]


def block_ratios(figures: Mapping[Key, float], reference: Mapping[Key, float]) -> list[float]:
    """Ratio for every block in which both figures are known and above zero."""
    return [
        figure / reference[block]
        for block, figure in figures.items()
        if figure > 0 and reference.get(block, 0.0) > 0
    ]


def in_blocks(count: int) -> str:
    """Text such as `5 blocks`."""
    return f"{count} block{'s' if count != 1 else ''}"
