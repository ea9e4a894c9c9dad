"""Recent maximum of a gauge, such as the connections in use.

It spans the current window and the one before, so a peak is kept for one to two windows. Pure: the caller passes the
time.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 60.0
"""Length of a window in seconds."""


class Peak:
    """Maximum of the values noted in the last two windows."""

    def __init__(self) -> None:
        self._this = self._last = 0
        self._began_at = 0.0

    def note(self, number: int, now: float) -> None:
        """Record the gauge's value at time `now`, in seconds."""
        if now - self._began_at >= WINDOW:
            self._last = self._this if now - self._began_at < 2 * WINDOW else 0
            self._this, self._began_at = 0, now
        if number > self._this:
            self._this = number

    @property
    def value(self) -> int:
        """Recent maximum, as of the last `note`."""
        return max(self._this, self._last)
