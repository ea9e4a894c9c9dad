"""Rendezvous (highest random weight) hashing: every endpoint bids for the key, and the highest bid gets it.

Keys share slots, and a slot's order of bids is cached while the endpoints stay: `selection/slot_orders.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated

from policies.endpoint.state import EndpointState
from policies.options import between
from policies.selection.keyed import ConsistentHashPolicy, LoadBound
from policies.selection.slot_orders import SLOTS, SlotOrders

MOST_SLOTS = 1 << 20
"""Largest `slots`: the order of endpoints is cached for each slot that was used."""


class Rendezvous(ConsistentHashPolicy):
    """Rendezvous hashing: the same endpoint for the same key, the highest of all weighted bids.

    When one of N endpoints is removed, exactly its own keys move, spread over all others by weight; when one is added,
    keys move only to it. `load_bound` 1.25 skips an endpoint that holds more than 1.25 times its share of what is in
    flight; 0 turns this off.
    """

    def __init__(
        self,
        rng: Random,
        *,
        slots: Annotated[int, "number of slots that keys share, at most 1,048,576"] = SLOTS,
        load_bound: LoadBound = 0.0,
    ) -> None:
        super().__init__(rng, load_bound)
        self._slots = between(16, MOST_SLOTS, slots=slots)
        self._orders = SlotOrders()

    def owner(self, hashed: int) -> EndpointState:
        """Return the key's first endpoint. O(1), and O(n) for the first use of a slot since endpoints have changed."""
        return self._orders[(hashed >> 32) * self._slots >> 32][0]

    def owners(self, hashed: int) -> Iterable[EndpointState]:
        """Return the endpoints, the highest bid first."""
        return self._orders.every((hashed >> 32) * self._slots >> 32)

    def learn(self, states: Sequence[EndpointState]) -> None:
        """Update the endpoints and discard all cached orders."""
        by_id = sorted(states, key=lambda state: state.id)
        self._orders.learn((state, state.endpoint.weight) for state in by_id)
