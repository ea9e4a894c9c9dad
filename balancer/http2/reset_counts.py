"""Count the streams that each client resets, over all its connections (Rapid Reset, CVE-2023-44487). Pure.

The engine limits the resets and other floods of one connection. A client that opens another connection instead is
limited here.
"""

from __future__ import annotations

from typing import Final

MOST: Final = 2000
"""Resets of one client at once beyond which its connections are ended: twice those of one connection."""

FLOOD: Final = MOST // 2
"""Resets that count at least for a connection which was ended because of a flood of any kind."""

PER_SECOND: Final = 66.0
"""Resets of one client in a second that are not counted: twice those of one connection."""

ATTEMPT: Final = 20
LARGEST: Final = MOST + 30 * PER_SECOND
"""Resets that count for a connection which is refused, and the count up to which they do: a client that reconnects more
than three times a second stays refused until 30 s after its last attempt. If all clients of a flood were let in at the
same time once their counts have fallen, their first reads would delay others."""

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

    def refuses(self, address: bytes, now: float) -> bool:
        """Return whether a client that opens a connection has reset too many streams; if so, the attempt counts too."""
        if address not in self._counts:
            return False
        count = self._count(address, now)
        if count <= MOST:
            return False
        self._counts[address] = min(count + ATTEMPT, LARGEST), now
        return True

    def _count(self, address: bytes, now: float) -> float:
        count, at = self._counts.get(address, (0.0, now))
        return max(0.0, count - (now - at) * PER_SECOND)

    def _forget(self, now: float) -> None:
        """Forget clients of count 0; without any, the quarter that came first."""
        kept = {address: found for address, found in self._counts.items() if self._count(address, now) > 0.0}
        if len(kept) >= CLIENTS:
            kept = dict(list(kept.items())[CLIENTS // 4 :])
        self._counts = kept
