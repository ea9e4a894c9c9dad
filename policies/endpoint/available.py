"""The sorted list of endpoints that can take a request now.

It is maintained incrementally: a change costs a binary search and a short memory move, a pick nothing. The order is
always that of the configuration, so that round robin keeps its cycle and a seeded run is reproducible.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import attrgetter

from policies.endpoint.state import EndpointState
from policies.facts import Region

_order = attrgetter("order")


class Available(list["EndpointState"]):
    """States in configuration order, and the same per region: each region's list is an `Available` as well.

    Read-only for policies. A region without available endpoints is not in `by_region`.
    """

    __slots__ = ()

    @property
    def by_region(self) -> dict[Region, Available]:
        """The list itself, of one region: kept in it, it would be a reference cycle, which holds the states."""
        return {self[0].region: self} if self else {}

    def of_priority(self, priority: int) -> Available:
        """Return those of a priority level."""
        return AvailableByRegion(state for state in self if state.endpoint.priority == priority)

    def without(self, ids: frozenset[str]) -> Available:
        """Return a copy without the endpoints in `ids`, or this list itself if none would be left."""
        others = AvailableByRegion(state for state in self if state.id not in ids)
        return others or self


class AvailableByRegion(Available):
    """All available states, and the lists of their regions."""

    __slots__ = ("by_region",)

    def __init__(self, states: Iterable[EndpointState] = ()) -> None:
        super().__init__(sorted(states, key=_order))
        self.by_region: dict[Region, Available] = {}
        for state in self:
            self._region(state.region).append(state)

    def _region(self, region: Region) -> Available:
        members = self.by_region.get(region)
        if members is None:
            members = self.by_region[region] = Available()
        return members

    def enter(self, state: EndpointState) -> None:
        """Insert `state`, which must not be in the list, at its position."""
        insort(self, state, key=_order)
        insort(self._region(state.region), state, key=_order)

    def leave(self, state: EndpointState) -> None:
        """Remove `state`, which must be in the list."""
        members = self.by_region[state.region]
        del self[bisect_left(self, state.order, key=_order)]
        del members[bisect_left(members, state.order, key=_order)]
        if not members:
            del self.by_region[state.region]


class AvailableByLevel(AvailableByRegion):
    """All available states of several priority levels, and the lists of these levels."""

    __slots__ = ("by_priority",)

    def __init__(self, states: Iterable[EndpointState], priorities: Iterable[int]) -> None:
        super().__init__(states)
        self.by_priority = {priority: AvailableByRegion() for priority in priorities}
        for state in self:
            self.by_priority[state.endpoint.priority].enter(state)

    def of_priority(self, priority: int) -> Available:
        return self.by_priority[priority]

    def enter(self, state: EndpointState) -> None:
        super().enter(state)
        self.by_priority[state.endpoint.priority].enter(state)

    def leave(self, state: EndpointState) -> None:
        super().leave(state)
        self.by_priority[state.endpoint.priority].leave(state)
