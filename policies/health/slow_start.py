"""Slow start: who is new or has returned gets its share by and by.

Rule of this file: weight × max(least, t/window). A policy that looks at weights honours that by itself. One that does
not is held by a bound on what the endpoint may have in flight: its share of twice what its peers hold. When nobody is
warm there is nobody to compare with, and all begin alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.routing.endpoint_state import EndpointState

LEAST = 0.1
"""The share to begin with: enough to warm up a cache, and to learn what the endpoint takes."""

SLACK = 2.0
"""Times its share of what is usual that it may hold at once: chance alone must not reach that."""


class SlowStart:
    """Who is warming up, over `window` seconds (0: nobody ever)."""

    def __init__(self, window: float = 0.0, least: float = LEAST) -> None:
        self.window = window
        self.least = least
        self._since: dict[EndpointState, float] = {}
        self._level = inf  # requests in flight per unit of weight at warm endpoints, at the last `advance`

    def __bool__(self) -> bool:
        return bool(self._since)

    def begin(self, state: EndpointState, now: float) -> None:
        """It is new, or back."""
        if self.window:
            self._since[state] = now

    def begin_alone(self, state: EndpointState, states: Iterable[EndpointState], now: float) -> None:
        """As `begin` and `advance`, without a look at the shares of all others: they wait for the next `advance`.

        O(1) while another endpoint warms up, else O(n).
        """
        if not self.window or self.least >= 1:
            return
        if not self._since:
            self._level = self._usual(states)
        self._since[state] = now
        state.warm(self.least, bound(self.least * self._level * state.endpoint.weight))

    def advance(self, states: Iterable[EndpointState], now: float) -> None:
        """Bring the shares up to date, and forget who has arrived."""
        usual = self._level = self._usual(states)
        for state, since in list(self._since.items()):
            share = max(self.least, (now - since) / self.window) if self.window else 1.0
            if share >= 1 or not state.is_member:
                del self._since[state]
                state.warm(1.0, inf)
            else:
                state.warm(share, bound(share * usual * state.endpoint.weight))

    def _usual(self, states: Iterable[EndpointState]) -> float:
        """Requests in flight per unit of weight at those that are warm; `inf` where nobody is."""
        warm = [state for state in states if state.is_fit and state not in self._since]
        weight = sum(state.weight for state in warm)
        return sum(state.in_flight for state in warm) / weight if weight else inf


def bound(usual: float) -> float:
    """The most that one may hold whose part of what is usual is this."""
    return usual if usual == inf else max(1, ceil(SLACK * usual))
