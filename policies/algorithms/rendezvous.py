"""Rendezvous (highest random weight) hashing: every endpoint bids for the key, and the highest bid gets it.

Thaler and Ravishankar, IEEE/ACM Transactions on Networking 1998; weighted by w / −ln u (Schindelhauer and Schomaker,
SPAA 2005): each endpoint gets its share. Keys share slots, and a slot's order of bids is cached while the endpoints
stay, so a key costs the same for any number of endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from math import log
from random import Random
from typing import Annotated

from policies.endpoint.state import EndpointState
from policies.options import between
from policies.selection import hashing
from policies.selection.keyed import ConsistentHashPolicy, LoadBound

SLOTS = 16_384
"""Slots that keys share. A share differs by √(n/slots): 8 % for a hundred endpoints, half of that with four times the
slots, each of which is computed when it is first used."""

DEPTH = 4
"""Highest bids that are cached for a slot."""


class SlotOrders(dict[int, list[EndpointState]]):
    """Slot -> its first `DEPTH` endpoints, the highest bid first. The first use of a slot is O(n), all others O(1)."""

    def __init__(self) -> None:
        super().__init__()
        self._bidders: list[tuple[EndpointState, float, int]] = []

    def learn(self, weighted: Iterable[tuple[EndpointState, float]]) -> None:
        """Set the endpoints and their weights, and discard all orders."""
        self._bidders = [(state, weight, hashing.of_name(state.id)) for state, weight in weighted]
        self.clear()

    def __missing__(self, slot: int) -> list[EndpointState]:
        order = self[slot] = self._highest(slot, DEPTH)
        return order

    def every(self, slot: int) -> Iterable[EndpointState]:
        """Yield all endpoints; beyond the first, all bids are compared again, and some endpoints come twice."""
        yield from self[slot]
        if len(self._bidders) > DEPTH:
            yield from self._highest(slot, len(self._bidders))

    def _highest(self, slot: int, number: int) -> list[EndpointState]:
        salt = hashing.mixed(slot + 1)
        bids = [(_bid(weight, salt ^ own), -at) for at, (_, weight, own) in enumerate(self._bidders)]
        return [self._bidders[-at][0] for _, at in nlargest(number, bids)]


def _bid(weight: float, hashed: int) -> float:
    return -weight / log((hashing.mixed(hashed) + 1) / (hashing.MASK + 2))


MOST_SLOTS = 1 << 20
"""Largest `slots`: the order of endpoints is cached for each slot that was used."""


class Rendezvous(ConsistentHashPolicy):
    """Rendezvous hashing: the same endpoint for the same key, the highest of all weighted bids.

    When one of N endpoints is removed, exactly its own keys move, spread over all others by weight; when one is added,
    keys move only to it.
    """

    def __init__(
        self,
        rng: Random,
        *,
        slots: Annotated[int, "number of slots that keys share", between(16, MOST_SLOTS)] = SLOTS,
        load_bound: LoadBound = 0.0,
    ) -> None:
        super().__init__(rng, load_bound)
        self._slots = slots
        self._orders = SlotOrders()

    def owner(self, hashed: int) -> EndpointState:
        """Return the key's first endpoint. O(1), and O(n) for the first use of a slot since endpoints have changed."""
        return self._orders[(hashed >> 32) * self._slots >> 32][0]

    def owners(self, hashed: int) -> Iterable[EndpointState]:
        return self._orders.every((hashed >> 32) * self._slots >> 32)

    def learn(self, states: Sequence[EndpointState]) -> None:
        by_id = sorted(states, key=lambda state: state.id)
        self._orders.learn((state, state.endpoint.weight) for state in by_id)
