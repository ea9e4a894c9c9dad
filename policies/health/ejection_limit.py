"""How many may be left out: a pool is never emptied by what the unit thinks of it.

Rule of this file: at most half of the pool is ejected, whatever it does, and one of two may go. So ejection alone never
leads to panic. Within a region it is half as well, one at least, since its callers may be bound to it. That holds for
opinions: who cannot be reached, or belongs to a region in which nothing has succeeded for a while, serves nobody by
staying, and the region may go whole while the pool can spare it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from policies.routing.facts import AdminState, Region

if TYPE_CHECKING:
    from policies.routing.endpoint_state import EndpointState

LOST_AFTER = 5.0
"""Seconds without any success after which a region whose members fail is lost."""


def allowance(size: int) -> int:
    """How many of a pool of that size may be ejected."""
    return size // 2


def region_allowance(size: int) -> int:
    """How many of a region of that size: of a region of one it is that one, if the pool can spare it."""
    return max(1, size // 2)


class Census:
    """Who is there and who is out, by region, and in all under None. Whom the operator took out counts as gone."""

    def __init__(self, states: Iterable[EndpointState] = ()) -> None:
        self.size: Counter[Region | None] = Counter()
        self.out: Counter[Region | None] = Counter()
        for state in states:
            self.add(state)

    def add(self, state: EndpointState) -> None:
        """Count `state` in, by its standing, region and `is_sound` as they are now."""
        self._count(state, 1)

    def remove(self, state: EndpointState) -> None:
        """Undo `add`; to be called before standing, region or `is_sound` change."""
        self._count(state, -1)

    def _count(self, state: EndpointState, number: int) -> None:
        if state.standing is AdminState.UP:
            self._add(self.size, state, number)
            if not state.is_sound:
                self._add(self.out, state, number)

    def _add(self, counter: Counter[Region | None], state: EndpointState, number: int) -> None:
        for key in (state.region, None):
            counter[key] += number
            if not counter[key]:
                del counter[key]  # else the regions that ever were would be kept

    def flip(self, state: EndpointState) -> None:
        """It has gone, or come back, as its `is_sound` says now."""
        if state.standing is AdminState.UP:
            self._add(self.out, state, -1 if state.is_sound else 1)

    def can_spare(self, state: EndpointState) -> bool:
        """Whether the pool can do without it, if it has to."""
        return self.out[None] < allowance(self.size[None])

    def region_can_spare(self, state: EndpointState) -> bool:
        """Whether its region can."""
        return self.out[state.region] < region_allowance(self.size[state.region])

    def is_overdrawn(self, region: Region) -> bool:
        """Whether more are out than may be ejected, of all or of `region`."""
        out, size = self.out, self.size
        return out[None] > allowance(size[None]) or out[region] > region_allowance(size[region])

    def fit_share(self, region: Region | None) -> float:
        """Which part is in; 1 where there is nobody."""
        size = self.size[region]
        return 1 - self.out[region] / size if size else 1.0


class LastSuccesses:
    """When each region last had a success, as far as ticks can tell."""

    def __init__(self) -> None:
        self._totals: Counter[Region] = Counter()
        self._at: dict[Region, float] = {}

    def look(self, states: Iterable[EndpointState], now: float) -> None:
        """Compare the totals with those of the last look."""
        totals: Counter[Region] = Counter()
        for state in states:
            totals[state.region] += state.successes
        for region, total in totals.items():
            if total != self._totals[region] or region not in self._at:
                self._at[region] = now
        self._totals = totals

    def is_lost(self, region: Region, now: float) -> bool:
        """Whether nothing there has succeeded for so long that nothing will."""
        return now - self._at.get(region, now) >= LOST_AFTER
