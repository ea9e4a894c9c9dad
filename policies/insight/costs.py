"""Costs in words: their parts in milliseconds by name, and what makes one dearer than another."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Final, NamedTuple

Parts = Mapping[str, float]
"""Parts of a cost in seconds, by name."""

NAMED: Final = 4
"""Candidates whose parts a text names; JSON has those of all."""

LEAST: Final = 1e-5
"""Seconds below which a text leaves out a part or a difference."""

LEAST_SHARE: Final = 0.02
"""The same, as a share of the sum, or of the difference of two."""


class Cost(NamedTuple):
    """Cost of one candidate in seconds, with its parts."""

    name: str
    seconds: float
    parts: Parts

    def __str__(self) -> str:
        """Return the sum in milliseconds: `us-1: 90 distance + 20 service - 10 margin = 100 ms`."""
        least = max(LEAST, LEAST_SHARE * abs(self.seconds))
        terms = " ".join(
            f"{'-' if part < 0.0 else '+'} {milliseconds(abs(part))} {name}"
            for name, part in self.parts.items()
            if not abs(part) < least
        )
        equals = f"{terms.removeprefix('+ ')} = " if terms else ""
        return f"{self.name}: {equals}{milliseconds(self.seconds)} ms"

    def compared(self, other: Cost) -> str:
        """Return what makes the other dearer or cheaper, the largest part first; empty if a cost is not a number."""
        difference = other.seconds - self.seconds
        if isnan(difference):
            return ""
        if abs(difference) < LEAST:
            return f"{other.name} costs the same"
        sign, more, less = (1.0, "more", "less") if difference > 0.0 else (-1.0, "less", "more")
        changes = [
            (sign * (other.parts.get(name, 0.0) - self.parts.get(name, 0.0)), name)
            for name in dict.fromkeys((*self.parts, *other.parts))
        ]
        changes.sort(key=lambda change: -abs(change[0]))
        least = max(LEAST, LEAST_SHARE * abs(difference))
        causes = ", ".join(f"{milliseconds(change)} {name}" for change, name in changes if change >= least)
        against = ", ".join(
            f"{milliseconds(-change)} {less} {name}" for change, name in changes if change <= -least
        )
        told = ", but ".join(filter(None, (causes, against)))
        return f"{other.name} costs {milliseconds(abs(difference))} ms {more}{told and f': {told}'}"


def in_words(costs: list[Cost]) -> list[str]:
    """Return the sums of the first, and the number and the least cost of the others."""
    shown, others = [str(cost) for cost in costs[:NAMED]], costs[NAMED:]
    if others:
        shown.append(f"{len(others)} more from {milliseconds(others[0].seconds)} ms")
    return shown


def milliseconds(seconds: float) -> str:
    """Return milliseconds as whole ones from 10 on, else with two digits."""
    number = seconds * 1e3
    return f"{number:.2g}" if abs(number) < 9.95 else f"{number:.0f}"
