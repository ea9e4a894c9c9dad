"""Bounds of policy options, stated in their annotations: `Annotated[float, "seconds for which one is kept", above(0)]`.

The registry checks them before it makes a policy. A policy that is made by its class directly is not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, without `least` if `is_above`, and 0 if `zero` says what it means."""

    least: float
    most: float = inf
    is_above: bool = False
    zero: str = ""

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, int | float):
            return False
        is_enough = value > self.least if self.is_above else value >= self.least
        return (is_enough and value <= self.most) or (self.zero != "" and value == 0)

    def __str__(self) -> str:
        zero = f"0 ({self.zero}) or " if self.zero else ""
        if self.most < inf:
            return f"{zero}from {self.least} to {self.most}"
        return f"{zero}{'>' if self.is_above else '>='} {self.least}"


@dataclass(frozen=True)
class OneOf:
    """The texts of `names`."""

    names: tuple[str, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.names

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"


Bound = Range | OneOf


def at_least(least: float, zero: str = "") -> Range:
    """Return the bound of an option that must be `least` or more, or 0 if `zero` says what it means."""
    return Range(least, zero=zero)


def above(least: float, zero: str = "") -> Range:
    """Return the bound of an option that must be more than `least`, or 0 if `zero` says what it means."""
    return Range(least, is_above=True, zero=zero)


def between(least: float, most: float) -> Range:
    """Return the bound of an option that must be from `least` to `most`."""
    return Range(least, most)


def one_of(*names: str) -> OneOf:
    """Return the bound of an option that must be one of some texts."""
    return OneOf(names)
