"""Load of priority levels: endpoints of a level beyond the first are backups, and get what those before cannot carry.

As in Envoy, a level carries its healthy share times the overprovisioning factor: with 1.4, all of the load while 72 %
of its endpoints are healthy, and 70 % of it with half of them. The next level gets the rest. If all of them together
cannot carry the load, each gets more than that in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

OVERPROVISIONING: Final = 1.4
"""Default factor (Envoy)."""

Loads = dict[int, float]
"""Share of the requests by priority, of the levels that get any; empty where all endpoints are one level."""


def capacity_of(healthy: Mapping[int, float], factor: float) -> float:
    """Return the share of the load that levels with these healthy shares carry together, at most 1."""
    return min(1.0, sum(min(1.0, factor * share) for share in healthy.values()))


def loads_of(healthy: Mapping[int, float], factor: float) -> Loads:
    """Return the loads of levels with these healthy shares; empty if none is healthy."""
    loads: Loads = {}
    capacity = capacity_of(healthy, factor)
    left = 1.0
    for priority in sorted(healthy):
        if left > 1e-9 and healthy[priority]:
            loads[priority] = min(left, min(1.0, factor * healthy[priority]) / capacity)
            left -= loads[priority]
    return loads


class LevelTurns:
    """Turns of the levels, so that each gets exactly its share: the one that lags furthest behind it is next."""

    def __init__(self) -> None:
        self._credit: Loads = {}

    def next(self, loads: Loads, on_offer: Sequence[int]) -> int:
        """Return the level of the next request, one of those `on_offer`."""
        credit = self._credit
        if credit.keys() != loads.keys():
            credit = self._credit = dict.fromkeys(loads, 0.0)
        for priority, load in loads.items():
            credit[priority] = min(1.0, credit[priority] + load)  # a full level does not catch up
        chosen = max(on_offer, key=lambda priority: credit[priority])
        credit[chosen] = max(-1.0, credit[chosen] - 1.0)
        return chosen
