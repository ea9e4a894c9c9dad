"""The endpoints that can take a request now.

Rule of this file: kept, never computed. A flip costs a binary search and a short move in memory; a pick
costs nothing. The order is the configuration's whatever flips, so a cycle stays a cycle and a seeded run
stays the same run.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.routing.endpoint_state import EndpointState
    from policies.routing.facts import Region

_order = attrgetter("order")


class Available(list["EndpointState"]):
    """A list of states in configuration order, and the same by region: each region's list is an Available as
    well.

    Policies read it and change nothing. A region without members is not in `by_region`.
    """

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
            members.by_region[region] = members
        return members

    def enter(self, state: EndpointState) -> None:
        """Put `state`, which is not here, in its place."""
        insort(self, state, key=_order)
        insort(self._region(state.region), state, key=_order)

    def leave(self, state: EndpointState) -> None:
        """Take out `state`, which is here."""
        members = self.by_region[state.region]
        del self[bisect_left(self, state.order, key=_order)]
        del members[bisect_left(members, state.order, key=_order)]
        if not members:
            del self.by_region[state.region]

    def without(self, ids: frozenset[str]) -> Available:
        """A copy without the endpoints named, or this list itself if that would leave none."""
        others = Available(state for state in self if state.id not in ids)
        return others or self
