"""Latency prior for endpoints without measurements."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from policies.facts import Region

if TYPE_CHECKING:
    from policies.endpoint.state import EndpointState


class LatencyPrior:
    """Latency prior of a region: the median floor of its measured endpoints, else of all, else GUESS.

    A constant prior is wrong across regions, and 0 draws all traffic to a new endpoint (Traefik did). Medians are O(n),
    so they are computed at most every RENEW_AFTER seconds, and only on demand.
    """

    GUESS = 0.1
    RENEW_AFTER = 0.5

    def __init__(self, states: Iterable[EndpointState] = ()) -> None:
        self.states = states
        self._by_region: dict[Region | None, float] = {}
        self._renewed_at = -inf

    def latency(self, region: Region | None, now: float) -> float:
        """Return the prior for `region` in seconds."""
        if now - self._renewed_at >= self.RENEW_AFTER:
            self._renew(now)
        everywhere = self._by_region.get(None, self.GUESS)
        return self._by_region.get(region, everywhere)

    def _renew(self, now: float) -> None:
        seen: dict[Region | None, list[float]] = {}
        for state in self.states:
            if state.is_measured(now) and state.latency.floor < inf:
                seen.setdefault(state.region, []).append(state.latency.floor)
                seen.setdefault(None, []).append(state.latency.floor)
        self._by_region = {region: median(floors) for region, floors in seen.items()}
        self._renewed_at = now
