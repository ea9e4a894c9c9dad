"""Maglev: a table of endpoints, and a key belongs to who stands in its place.

Rule of this file: the table is worked out when endpoints come or go, and a pick is one look into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from random import Random

from policies import hashing
from policies.errors import BadPolicyOption
from policies.keyed import Keyed
from policies.options import between
from policies.routing.endpoint_state import EndpointState

TABLE = 65_537
"""Places, a prime, as in the paper: a hundred endpoints each have as many as their weight says to within 1 %. Filling
it takes 30 to 90 ms, during which nobody is served."""

MOST_LOOKS = 256
"""Places that are looked at for somebody who can take a key. Of a hundred endpoints of which one can, it is among
them in 92 % of cases; for the rest anybody will do."""


MOST_PLACES = 1_048_573
"""Largest `table`: the last prime below 2²⁰."""


class Maglev(Keyed):
    """The same endpoint for the same key: one look into a table that all have filled evenly, by weight.

    Eisenbud and others, Maglev: A Fast and Reliable Software Network Load Balancer, NSDI 2016, § 3.4; by weight, who
    weighs less has its turn less often. Shares are more even than a ring's. When one of N goes, its keys are spread
    over all others, and a few of theirs move as well. Who cannot take a key now keeps its places, and its keys go to
    other places, drawn by the key. `load_bound` 1.25 passes over who holds more than 1.25 times its part of what is
    in flight; 0 does not look.
    """

    def __init__(self, rng: Random, *, table: int = TABLE, load_bound: float = 0.0) -> None:
        super().__init__(rng, load_bound)
        if not is_prime(between(2, MOST_PLACES, table=table)):
            raise BadPolicyOption("table", f"must be a prime number such as 251, 4099 or 65537, got {table}")
        self._size_of_table = table
        self._table: list[EndpointState] = []

    def owner(self, hashed: int) -> EndpointState:
        """O(1)."""
        return self._table[(hashed >> 32) * self._size_of_table >> 32]

    def owners(self, hashed: int) -> Iterable[EndpointState]:
        """The place, and others at a distance that is the key's own."""
        table, size = self._table, self._size_of_table
        at = (hashed >> 32) * size >> 32
        step = 1 + hashing.mixed(hashed) % (size - 1)
        for _ in range(MOST_LOOKS):
            yield table[at]
            at = (at + step) % size

    def learn(self, states: Sequence[EndpointState]) -> None:
        """Fill the table: each in turn takes the next place on its list that is free. O(table · log table)."""
        ordered = sorted(states, key=lambda state: state.id)
        members = tuple((state.id, state.endpoint.weight) for state in ordered)
        self._table = [ordered[at] for at in filled(members, self._size_of_table)]


@lru_cache(maxsize=4)
def filled(members: tuple[tuple[str, float], ...], size: int) -> Sequence[int]:
    """For each place who stands there, of these ids and weights; `size` is a prime. Their order counts.

    Kept for who asks again: the policies of several regions or balancers, and one that is put in force anew.
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
    """By trial: it is small, and asked once."""
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))
