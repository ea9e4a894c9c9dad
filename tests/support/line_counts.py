"""Counts of executed lines, to measure growth without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(do: Callable[[], object]) -> int:
    """Number of executed lines, loop iterations included; compiled modules are not counted."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return count


def growth(do: Callable[[int], None], size: int) -> float:
    """Ratio of the steps for twice the size: about 2 is linear, about 4 is quadratic."""
    return steps(lambda: do(2 * size)) / steps(lambda: do(size))
