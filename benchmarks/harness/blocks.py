"""Blocks: every side once, in random order. Ratios are computed within a block, under equal machine load."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from random import Random
from statistics import median
from typing import TypeVar

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


def middle(values: Sequence[float]) -> float | None:
    """Median; None without values."""
    return median(values) if values else None


def in_blocks(count: int) -> str:
    """Text such as `5 blocks`."""
    return f"{count} block{'s' if count != 1 else ''}"
