"""Bounds of policy options, stated in their annotations: `Annotated[float, "seconds for which one is kept", above(0)]`.

The registry checks them before it makes a policy. A policy that is made by its class directly is not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, without `least` if `is_above`, and 0 if `zero` says what it means."""

    least: float
    most: float = inf
    zero: str = ""
    is_above: bool = False

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, int | float):
            return False
        is_enough = value > self.least if self.is_above else value >= self.least
        return (is_enough and value <= self.most) or (self.zero != "" and value == 0)

    def __str__(self) -> str:
        if self.most < inf:
            return f"from {self.least} to {self.most}"
        zero = f"0 ({self.zero}) or " if self.zero else ""
        return f"{zero}{'>' if self.is_above else '>='} {self.least}"


at_least = between = Range
"""`at_least(2)`, `at_least(2, zero="all")`, `between(0, 1)`."""

above = partial(Range, is_above=True)


class OneOf(tuple[str, ...]):
    """Texts, of which an option must be one: `OneOf(("random", "rate"))`."""

    def __str__(self) -> str:
        return f"one of {', '.join(self)}"


Bound = Range | OneOf
