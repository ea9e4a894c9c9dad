"""Maglev consistent hashing: a lookup table of endpoints, indexed by the key's hash.

The table is filled when endpoints or weights change; a pick is one lookup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from random import Random
from typing import Annotated

from policies.endpoint.state import EndpointState
from policies.errors import BadPolicyOption
from policies.options import between
from policies.selection import hashing
from policies.selection.keyed import ConsistentHashPolicy, LoadBound

TABLE = 65_537
"""Default table size, a prime, as in the paper: the shares of a hundred endpoints match their weights
to within 1 %. Filling it takes 30 to 90 ms, during which no request is served."""

MOST_LOOKS = 256
"""Places that are tried for an endpoint that can take a key. If one of a hundred endpoints can, it is among them in 92
% of cases; in the rest any endpoint is used."""


MOST_PLACES = 1_048_573
"""Largest `table`: the last prime below 2²⁰."""


class Maglev(ConsistentHashPolicy):
    """Maglev consistent hashing: one lookup of the key in a table that is filled evenly, by weight.

    Eisenbud and others, Maglev: A Fast and Reliable Software Network Load Balancer, NSDI 2016, § 3.4; a lower weight
    gives fewer turns to fill a place. Shares are more even than a ring's. When one of N endpoints is removed, its keys
    are spread over all others, and a few of theirs move as well. An unavailable endpoint keeps its places, and its keys
    go to other places, drawn by the key.
    """

    def __init__(
        self,
        rng: Random,
        *,
        table: Annotated[int, "size of the table, a prime", between(2, MOST_PLACES)] = TABLE,
        load_bound: LoadBound = 0.0,
    ) -> None:
        super().__init__(rng, load_bound)
        if not is_prime(table):
            raise BadPolicyOption("table", f"must be a prime number such as 251, 4099 or 65537, got {table}")
        self._size_of_table = table
        self._table: list[EndpointState] = []

    def owner(self, hashed: int) -> EndpointState:
        """Return the endpoint at the key's place. O(1)."""
        return self._table[(hashed >> 32) * self._size_of_table >> 32]

    def owners(self, hashed: int) -> Iterable[EndpointState]:
        """Yield the endpoint at the key's place, then those at multiples of a step that depends on the key."""
        table, size = self._table, self._size_of_table
        at = (hashed >> 32) * size >> 32
        step = 1 + hashing.mixed(hashed) % (size - 1)
        for _ in range(MOST_LOOKS):
            yield table[at]
            at = (at + step) % size

    def learn(self, states: Sequence[EndpointState]) -> None:
        """Fill the table: each endpoint in turn takes the next free place on its list. O(table · log table)."""
        ordered = sorted(states, key=lambda state: state.id)
        members = tuple((state.id, state.endpoint.weight) for state in ordered)
        self._table = [ordered[at] for at in filled(members, self._size_of_table)]


@lru_cache(maxsize=4)
def filled(members: tuple[tuple[str, float], ...], size: int) -> Sequence[int]:
    """Return the index of the endpoint at each place, for these ids and weights in order; `size` must be a prime.

    Cached for the policies of several regions or balancers, and for a policy that is installed again.
    """
    if not members:
        return ()
    places = [-1] * size
    steps = [1 + hashing.of_name(f"{name} step") % (size - 1) for name, _ in members]
    at = [hashing.of_name(f"{name} place") % size for name, _ in members]
    periods = [1 / weight for _, weight in members]
    turns = [(period, member) for member, period in enumerate(periods)]
    heapify(turns)
    for _ in range(size):
        due, member = turns[0]
        place, step = at[member], steps[member]
        while places[place] >= 0:
            place += step
            if place >= size:
                place -= size
        places[place] = member
        at[member] = place
        heapreplace(turns, (due + periods[member], member))
    return places


def is_prime(number: int) -> bool:
    """Whether `number` is prime, by trial division: it is small, and tested once."""
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))
