"""Slow start: a new or returned endpoint gets its share gradually.

Its weight is multiplied by max(minimum, t/window), which policies that use weights honour by themselves. For others the
requests in flight at the endpoint are limited: to its share of twice what its peers hold. When no endpoint is warm
there is no reference, and all begin alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf

from policies.endpoint.state import EndpointState

INITIAL_SHARE = 0.1
"""Initial share: enough to warm up a cache, and to measure the endpoint."""

SLACK = 2.0
"""Multiple of its share of the usual load that it may hold at once: random variation alone must not reach that."""


class SlowStart:
    """Endpoints in slow start, over `window` seconds (0: off)."""

    def __init__(self, window: float = 0.0, minimum: float = INITIAL_SHARE) -> None:
        self.window = window
        self.minimum = minimum
        self._since: dict[EndpointState, float] = {}
        self._level = inf  # requests in flight per unit of weight at warm endpoints, at the last `advance`

    def __bool__(self) -> bool:
        return bool(self._since)

    def begin(self, state: EndpointState, now: float) -> None:
        if self.window:
            self._since[state] = now

    def begin_alone(self, state: EndpointState, states: Iterable[EndpointState], now: float) -> None:
        """Like `begin` and `advance`, but without an update of the other shares, which the next `advance` makes.

        O(1) while another endpoint is in slow start, else O(n).
        """
        if not self.window or self.minimum >= 1:
            return
        if not self._since:
            self._level = self._usual(states)
        self._since[state] = now
        state.apply_slow_start(self.minimum, bound(self.minimum * self._level * state.endpoint.weight))

    def advance(self, states: Iterable[EndpointState], now: float) -> None:
        """Update the shares, and remove endpoints whose slow start is over."""
        usual = self._level = self._usual(states)
        for state, since in list(self._since.items()):
            share = max(self.minimum, (now - since) / self.window) if self.window else 1.0
            if share >= 1 or not state.is_member:
                del self._since[state]
                state.apply_slow_start(1.0, inf)
            else:
                state.apply_slow_start(share, bound(share * usual * state.endpoint.weight))

    def _usual(self, states: Iterable[EndpointState]) -> float:
        """Return the requests in flight per unit of weight at warm endpoints; `inf` if there are none."""
        warm = [state for state in states if state.is_eligible and state not in self._since]
        weight = sum(state.weight for state in warm)
        return sum(state.in_flight for state in warm) / weight if weight else inf


def bound(usual: float) -> float:
    """Return the limit on requests in flight for an endpoint whose part of the usual load is `usual`."""
    return usual if usual == inf else max(1, ceil(SLACK * usual))
