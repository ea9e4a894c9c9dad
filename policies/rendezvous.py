"""Rendezvous: every endpoint bids for the key, and the highest bid has it.

Rule of this file: keys share slots, and a slot's bids are compared once and kept while the endpoints stay. The first
look at a slot is O(n), all others are one look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from math import log
from random import Random

from policies import hashing
from policies.keyed import Keyed
from policies.options import between
from policies.routing.endpoint_state import EndpointState

SLOTS = 16_384
"""Slots that keys share. A share differs by √(n/slots): 8 % for a hundred endpoints, half of that with four times the
slots, each of which is worked out when it is first met."""

DEPTH = 4
"""Highest bids that are kept for a slot. Who needs more has them all compared again."""


MOST_SLOTS = 1 << 20
"""Largest `slots`: the order of endpoints is kept for each slot that was met."""


class Rendezvous(Keyed):
    """The same endpoint for the same key: the highest of all bids, by weight.

    Thaler and Ravishankar, IEEE/ACM Transactions on Networking 1998; weighted by w / −ln u (Schindelhauer and
    Schomaker, SPAA 2005). When one of N goes, exactly its own keys move, spread over all others by weight, and when
    one comes, it takes from each what it needs and nobody else gets anything. `load_bound` 1.25 passes over who holds
    more than 1.25 times its part of what is in flight; 0 does not look.
    """

    def __init__(self, rng: Random, *, slots: int = SLOTS, load_bound: float = 0.0) -> None:
        super().__init__(rng, load_bound)
        self._slots = between(16, MOST_SLOTS, slots=slots)
        self._bidders: list[tuple[EndpointState, int]] = []
        self._orders: dict[int, list[EndpointState]] = {}

    def owner(self, hashed: int) -> EndpointState:
        """O(1), and O(n) for a slot that is met for the first time since endpoints have changed."""
        slot = (hashed >> 32) * self._slots >> 32
        order = self._orders.get(slot)
        if order is None:
            order = self._orders[slot] = self._highest(slot, DEPTH)
        return order[0]

    def owners(self, hashed: int) -> Iterable[EndpointState]:
        """The highest bid first."""
        slot = (hashed >> 32) * self._slots >> 32
        self.owner(hashed)
        yield from self._orders[slot]
        if len(self._bidders) > DEPTH:
            yield from self._highest(slot, len(self._bidders))

    def learn(self, states: Sequence[EndpointState]) -> None:
        """Slots are worked out anew when they are met."""
        self._bidders = [(state, hashing.of_name(state.id)) for state in sorted(states, key=lambda s: s.id)]
        self._orders = {}

    def _highest(self, slot: int, number: int) -> list[EndpointState]:
        salt = hashing.mixed(slot + 1)
        bids = [(_bid(state, salt ^ own), -at) for at, (state, own) in enumerate(self._bidders)]
        return [self._bidders[-at][0] for _, at in nlargest(number, bids)]


def _bid(state: EndpointState, hashed: int) -> float:
    return -state.endpoint.weight / log((hashing.mixed(hashed) + 1) / (hashing.MASK + 2))
