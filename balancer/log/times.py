"""Instants and durations as text, for the access log. Pure.

The texts are those of `round` and of `.6f`, which compiled take ten to a hundred times as long.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

DIGITS: Final[list[str]] = [f"{number:03}" for number in range(1000)]
"""Three digits of each number below a thousand."""

BELOW_ONE: Final[list[str]] = [f"0.{number:03}" for number in range(1000)]


class Second:
    """The last whole second of Unix time as text behind `before`: most lines share it with the line before."""

    def __init__(self, before: str = "") -> None:
        self._before = before
        self._at = -1
        self._text = ""

    def text(self, at: int) -> str:
        """Format a second in UTC, up to the decimal point."""
        if at != self._at:
            self._text = self._before + datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
            self._at = at
        return self._text


def rounded(number: float) -> int:
    """Round a positive number as `round` does: a half to the even neighbour."""
    whole = int(number)
    rest = number - whole
    return whole + 1 if rest > 0.5 or (rest == 0.5 and whole % 2 == 1) else whole


def decimals(seconds: float) -> tuple[str, str]:
    """Format seconds with six decimals, in two parts; null for nan."""
    exact = seconds * 1e6
    if 0.0 <= exact < 999_999.0:
        whole = int(exact + 0.5)
        if -0.499 < exact - whole < 0.499:  # otherwise the rounding of the product might decide
            return BELOW_ONE[whole // 1000], DIGITS[whole % 1000]
    return f"{seconds:.6f}" if seconds == seconds else "null", ""
