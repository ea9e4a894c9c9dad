"""Count the streams that each client resets, over all its connections (Rapid Reset, CVE-2023-44487). Pure.

The engine limits the resets of one connection. A client that opens another connection instead is limited here.
"""

from __future__ import annotations

from typing import Final

MOST: Final = 2000
"""Resets of one client at once beyond which its connections are ended: twice those of one connection."""

PER_SECOND: Final = 66.0
"""Resets of one client in a second that are not counted: twice those of one connection."""

CLIENTS: Final = 4096
"""Clients that are remembered; beyond it those whose resets came first are forgotten."""


class ResetCounts:
    """Counts by client address: each falls by `PER_SECOND`, and one of 0 is not kept."""

    def __init__(self) -> None:
        self._counts: dict[bytes, tuple[float, float]] = {}  # count, and when it was that

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, address: bytes, number: int, now: float) -> bool:
        """Count resets of a client. Returns whether they are too many."""
        count = self._count(address, now) + number
        if address not in self._counts and len(self._counts) >= CLIENTS:
            self._forget(now)
        self._counts[address] = count, now
        return count > MOST

    def is_over(self, address: bytes, now: float) -> bool:
        """Return whether a client has reset too many streams."""
        return address in self._counts and self._count(address, now) > MOST

    def _count(self, address: bytes, now: float) -> float:
        count, at = self._counts.get(address, (0.0, now))
        return max(0.0, count - (now - at) * PER_SECOND)

    def _forget(self, now: float) -> None:
        """Forget clients of count 0; without any, the quarter that came first."""
        kept = {address: found for address, found in self._counts.items() if self._count(address, now) > 0.0}
        if len(kept) >= CLIENTS:
            kept = dict(list(kept.items())[CLIENTS // 4 :])
        self._counts = kept
