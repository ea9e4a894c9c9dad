"""Ring hash (ketama): each endpoint has points on a circle, and a key belongs to the endpoint of the next point.

An endpoint's points depend on its name and its weight alone, so that a change of others moves as few keys as possible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from random import Random
from typing import Annotated

from policies.endpoint.state import EndpointState
from policies.options import between
from policies.selection import hashing
from policies.selection.keyed import ConsistentHashPolicy, LoadBound

POINTS = 512
"""Points of an endpoint of weight 1. A share differs by 1/√points, here 4 %; two endpoints have 1024, Envoy's minimum.
A lookup takes as long for any number; a new endpoint among a hundred is added in 10 ms, among a thousand in 100 ms."""


MOST_POINTS = 16_384
"""Largest value of the option `points`."""

MAX_RING_POINTS = 1 << 20
"""Most points of all endpoints together, some 100 MB: above it, each has half of its points, a quarter, and so on."""


class RingHash(ConsistentHashPolicy):
    """The same endpoint for the same key: consistent hashing on a ring of points, by weight.

    Karger, Lehman, Leighton, Levine, Lewin and Panigrahy, Consistent Hashing and Random Trees, STOC 1997; with points
    in proportion to weight as in libketama (2007). When one of N endpoints is removed, only its own keys move, 1/N of
    them, each to the endpoint of the next point; so do those of one that is unavailable.
    """

    def __init__(
        self,
        rng: Random,
        *,
        points: Annotated[
            int,
            "points of an endpoint of weight 1; halved until all together have at most 1,048,576",
            between(1, MOST_POINTS),
        ] = POINTS,
        load_bound: LoadBound = 0.0,
    ) -> None:
        super().__init__(rng, load_bound)
        self._points_of_one = points
        self._points: list[float] = []
        self._owner: dict[float, EndpointState] = {}
        self._placed: dict[EndpointState, Sequence[float]] = {}

    def owner(self, hashed: int) -> EndpointState:
        """Return the endpoint of the next point. O(log points)."""
        points = self._points
        at = bisect_right(points, hashed * hashing.UNIT)
        return self._owner[points[at if at < len(points) else 0]]

    def owners(self, hashed: int) -> Iterable[EndpointState]:
        """Yield the endpoints of all points, once around the ring."""
        points, owner = self._points, self._owner
        start = bisect_right(points, hashed * hashing.UNIT)
        for part in (range(start, len(points)), range(start)):
            for at in part:
                yield owner[points[at]]

    def learn(self, states: Sequence[EndpointState]) -> None:
        """Remove the points of removed endpoints and add those of new ones: O(points), mostly outside Python code."""
        of_one = points_of_weight_one(self._points_of_one, sum(state.endpoint.weight for state in states))
        wanted = {state: max(1, round(of_one * state.endpoint.weight)) for state in states}
        gone = [state for state, points in self._placed.items() if wanted.get(state) != len(points)]
        vacant = {point for state in gone for point in self._placed.pop(state)}
        if vacant:
            self._points = [point for point in self._points if point not in vacant]
            for point in vacant:
                self._owner.pop(point, None)
        fresh: list[float] = []
        for state, number in wanted.items():
            if state not in self._placed:
                points = points_of(state.id, number)
                self._placed[state] = points
                self._owner.update(dict.fromkeys(points, state))
                fresh += points
        self._points += sorted(fresh)
        self._points.sort()  # two sorted runs: merged, not sorted


def points_of_weight_one(points: int, weight: float) -> float:
    """Return `points`, halved until endpoints of this `weight` together have no more than `MAX_RING_POINTS`.

    By halves, so that a change of the endpoints seldom changes how many points the others have.
    """
    of_one = float(points)
    while of_one * weight > MAX_RING_POINTS:
        of_one /= 2
    return of_one


@lru_cache(maxsize=64)
def points_of(name: str, number: int) -> Sequence[float]:
    """Return the positions of an endpoint's points on the ring; a longer list begins with the shorter one.

    Cached for the policies of several regions or balancers."""
    return tuple(place * hashing.UNIT for place in hashing.several(name, number))
