"""Latency prior for endpoints without measurements."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Final

from policies.facts import Region

if TYPE_CHECKING:
    from policies.endpoint.state import EndpointState


GUESS: Final = 0.1
"""Seconds that are assumed where nothing is measured."""

RENEW_AFTER: Final = 0.5
"""Seconds between two updates at least: medians are O(n)."""


class LatencyPrior:
    """Latency prior of a region: the median floor of its measured endpoints, else of all, else GUESS.

    A constant prior is wrong across regions, and 0 draws all traffic to a new endpoint (Traefik did). Medians are
    computed on demand only.
    """

    def __init__(self, states: Iterable[EndpointState] = ()) -> None:
        self.states = states
        self._by_region: dict[Region | None, float] = {}
        self._renewed_at = -inf

    def latency(self, region: Region | None, now: float) -> float:
        """Return the prior for `region` in seconds."""
        if now - self._renewed_at >= RENEW_AFTER:
            self._renew(now)
        everywhere = self._by_region.get(None, GUESS)
        return self._by_region.get(region, everywhere)

    def _renew(self, now: float) -> None:
        seen: dict[Region | None, list[float]] = {}
        for state in self.states:
            if state.is_measured(now) and state.latency.floor < inf:
                seen.setdefault(state.region, []).append(state.latency.floor)
                seen.setdefault(None, []).append(state.latency.floor)
        self._by_region = {region: median(floors) for region, floors in seen.items()}
        self._renewed_at = now
