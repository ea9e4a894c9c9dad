"""How many steps Python takes for something, so that its growth can be told without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(do: Callable[[], None]) -> int:
    """Lines that are executed, each turn of a loop or comprehension counted. What compiled modules do is not seen."""
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
    """How many times as many steps twice the size takes. About 2 is linear, about 4 is quadratic."""
    return steps(lambda: do(2 * size)) / steps(lambda: do(size))
