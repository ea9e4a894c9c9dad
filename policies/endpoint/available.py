"""The sorted list of endpoints that can take a request now.

It is read-only for policies: a changed one would lose endpoints, also for the next policy.

It is maintained incrementally: a change costs a binary search and a short memory move, a pick nothing. The order is
always that of the configuration, so that round robin keeps its cycle and a seeded run is reproducible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from policies.endpoint.state import EndpointState
from policies.facts import Region

_order = attrgetter("order")
_insert, _pop = list.insert, list.pop  # those of `Available` raise


def _is_read_only(*_: object, **__: object) -> Any:
    raise TypeError("the available endpoints are read-only: change a copy, such as list(available)")


_REFUSED: Any = _is_read_only
"""A method that raises, in place of one that changes the object."""


class Available(list["EndpointState"]):
    """States in configuration order, and the same per region: each region's list is an `Available` as well.

    Methods that change it raise TypeError. A region without available endpoints is not in `by_region`.
    Policies of this package read it as `regions`, the dictionary itself, which compiled code reads faster.
    """

    __slots__ = ()
    __copy__ = list.copy
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _REFUSED
    append = clear = extend = insert = pop = remove = reverse = sort = _REFUSED

    @property
    def regions(self) -> dict[Region, Available]:
        """The list itself, of one region: kept in it, it would be a reference cycle, which holds the states."""
        return {self[0].region: self} if self else {}

    @property
    def by_region(self) -> Mapping[Region, Available]:
        """The lists of the regions, read-only."""
        return self.regions

    def of_priority(self, priority: int) -> Available:
        """Return those of a priority level."""
        return AvailableByRegion(state for state in self if state.endpoint.priority == priority)

    def without(self, ids: frozenset[str]) -> Available:
        """Return a copy without the endpoints in `ids`, or this list itself if none would be left."""
        others = AvailableByRegion(state for state in self if state.id not in ids)
        return others or self


class AvailableByRegion(Available):
    """All available states, and the lists of their regions."""

    __slots__ = ("by_region", "regions")

    def __init__(self, states: Iterable[EndpointState] = ()) -> None:
        super().__init__(sorted(states, key=_order))
        self.regions: dict[Region, Available] = {}
        self.by_region: Mapping[Region, Available] = MappingProxyType(self.regions)
        for state in self:
            _insert(self._region(state.region), len(self), state)

    def _region(self, region: Region) -> Available:
        members = self.regions.get(region)
        if members is None:
            members = self.regions[region] = Available()
        return members

    def enter(self, state: EndpointState) -> None:
        """Insert `state`, which must not be in the list, at its position."""
        members, order = self._region(state.region), state.order
        _insert(self, bisect_left(self, order, key=_order), state)
        _insert(members, bisect_left(members, order, key=_order), state)

    def leave(self, state: EndpointState) -> None:
        """Remove `state`, which must be in the list."""
        members, order = self.regions[state.region], state.order
        _pop(self, bisect_left(self, order, key=_order))
        _pop(members, bisect_left(members, order, key=_order))
        if not members:
            del self.regions[state.region]


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
