"""Count the streams that each client resets or breaks, over all its connections (CVE-2023-44487, CVE-2025-8671). Pure.

The engine limits the resets and other floods of one connection. A client that opens another connection instead is
refused HTTP/2 here for a while. Others may have the same address (NAT), so nothing else is refused.
"""

from __future__ import annotations

from typing import Final

from balancer.http.h2.events import HTTP_1_1_REQUIRED

MAX_RESETS: Final = 2000
"""Resets of one client at once beyond which it is refused HTTP/2: twice those of one connection."""

FLOOD_RESETS: Final = MAX_RESETS // 2
"""Resets that count at least for a connection which was ended because of a flood of any kind."""

FREE_PER_SECOND: Final = 66.0
"""Resets of one client in a second that are not counted: twice those of one connection."""

REFUSAL_S: Final = 10.0
"""Seconds for which a client is refused HTTP/2, however often it tries. Its count has fallen by a third of `MAX_RESETS`
then, so the next connection that ends by a flood begins the next refusal."""

REFUSAL_DELAY_S: Final = 0.5
"""Seconds that a refused connection waits for its GOAWAY, and at most twice that: a flood comes back as soon as it has
it, and all of it at once if all have it at once. Beside 50 such clients p99 of others is 5 ms instead of 20 ms."""

MAX_DELAYED_REFUSALS: Final = 128
"""Connections of a client up to which one is refused late: 10 KiB each, 70 KiB over TLS, where a session exists."""

TOO_MANY_RESETS: Final = "too many streams of this client were reset"

_GOAWAY: Final = b"\0\0\0\0" + HTTP_1_1_REQUIRED.to_bytes(4, "big") + TOO_MANY_RESETS.encode()
REFUSED: Final = b"\0\0\0\4\0\0\0\0\0\0\0" + bytes([len(_GOAWAY), 7, 0, 0, 0, 0, 0]) + _GOAWAY
"""SETTINGS and GOAWAY for a connection that is refused at once, without a session, which would cost more."""

CLIENTS: Final = 4096
"""Clients that are remembered; beyond it those whose resets came first are forgotten."""


def refusal_delay(number: int, connections: int) -> float:
    """Return the seconds that a refused connection waits: the `number`-th, of a client with `connections`."""
    return 0.0 if connections > MAX_DELAYED_REFUSALS else REFUSAL_DELAY_S * (1.0 + number % 64 / 64)


class ResetCounts:
    """Counts by client address: each falls by `FREE_PER_SECOND`, and one of 0 is not kept."""

    def __init__(self) -> None:
        self._counts: dict[bytes, tuple[float, float]] = {}  # count, and when it was that
        self._refused_until: dict[bytes, float] = {}  # of clients in `_counts`

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, address: bytes, number: int, now: float) -> bool:
        """Count resets of a client. Returns whether it is refused from now on, or already."""
        count = self._count(address, now) + number
        if address not in self._counts and len(self._counts) >= CLIENTS:
            self._forget(now)
        self._counts[address] = min(count, MAX_RESETS), now
        if count > MAX_RESETS and not self.refuses(address, now):
            self._refused_until[address] = now + REFUSAL_S
        return self.refuses(address, now)

    def refuses(self, address: bytes, now: float) -> bool:
        """Return whether a client may not use HTTP/2 now."""
        return now < self._refused_until.get(address, 0.0)

    def _count(self, address: bytes, now: float) -> float:
        count, at = self._counts.get(address, (0.0, now))
        return max(0.0, count - (now - at) * FREE_PER_SECOND)

    def _forget(self, now: float) -> None:
        """Forget clients of count 0; without any, the quarter that came first."""
        kept = {address: found for address, found in self._counts.items() if self._count(address, now) > 0.0}
        if len(kept) >= CLIENTS:
            kept = dict(list(kept.items())[CLIENTS // 4 :])
        self._counts = kept
        ends = self._refused_until
        self._refused_until = {address: ends[address] for address in kept if address in ends}
