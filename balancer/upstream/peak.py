"""The most that were in use at once of late.

Rule of this file: pure and clocked. Two windows, this one and the last, so a peak is kept for one to two of them.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 60.0
"""Seconds."""


class Peak:
    """The greatest of what was noted."""

    def __init__(self) -> None:
        self._this = self._last = 0
        self._began_at = 0.0

    def note(self, number: int, now: float) -> None:
        """So many are in use now."""
        if now - self._began_at >= WINDOW:
            self._last = self._this if now - self._began_at < 2 * WINDOW else 0
            self._this, self._began_at = 0, now
        if number > self._this:
            self._this = number

    @property
    def value(self) -> int:
        """As of the last note."""
        return max(self._this, self._last)
