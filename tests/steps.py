"""Count the lines that Python executes, to measure growth without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(do: Callable[[], None]) -> int:
    """Executed lines, including each iteration of a loop or comprehension. Compiled modules are not counted."""
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
    """The factor of steps for twice the size: about 2 is linear, about 4 quadratic."""
    return steps(lambda: do(2 * size)) / steps(lambda: do(size))
