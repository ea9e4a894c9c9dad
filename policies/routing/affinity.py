"""Session affinity: requests with the same key go to one endpoint while it is available.

A wrapper around any policy. Requests without a key, or whose endpoints are not available, go where the inner policy
picks, so affinity never fails a request. No state is kept per client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policies.algorithms.rendezvous import SLOTS, SlotOrders
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import WrappingPolicy, combine_hooks
from policies.policy import Policy
from policies.selection import hashing

KEPT = "kept"
"""Reason: session affinity, the endpoint that the key maps to."""

MOVED = "moved"
"""Reason: another endpoint than session affinity selects, which is not available. If the inner policy picked it, its
reasons follow."""


@dataclass(slots=True)
class StickyCounts:
    """Counts of requests with a key: `kept` went to the key's first endpoint, `moved` to another."""

    kept: int = 0
    moved: int = 0


class Sticky(WrappingPolicy):
    """A policy that prefers the endpoints that `placement` gives for the request's key."""

    def __init__(self, inner: Policy, placement: Placement, counts: StickyCounts | None = None) -> None:
        self.inner = inner
        self._inner = (inner,)
        self.counts = counts or StickyCounts()
        self._placement = placement
        combine_hooks(self, (inner, placement))

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the first available endpoint of the key, else what the inner policy picks."""
        if facts.key is not None:
            order = self._placement.of(facts.key)
            for state in order:
                if state.is_selectable and state.id not in facts.tried:
                    self.counts.kept += state is order[0]
                    self.counts.moved += state is not order[0]
                    if self._trace is not None:
                        self._trace.note(KEPT if state is order[0] else MOVED, order)
                    return state
            self.counts.moved += bool(order)
            if self._trace is not None and order:
                self._trace.note(MOVED, order)
        return self.inner.pick(facts, available, now)


class ByToken:
    """Placement by token: a key, such as the balancer's cookie, is the token of one endpoint, or unknown."""

    def __init__(self, token_of: Callable[[str], str]) -> None:
        self._token_of = token_of
        self._by_token: dict[str, tuple[EndpointState, ...]] = {}
        self._tokens: dict[str, str] = {}

    def of(self, key: str) -> Sequence[EndpointState]:
        """Return the endpoint with this token, or an empty sequence."""
        return self._by_token.get(key, ())

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Rebuild the table; only new endpoints have their token hashed, which is the most expensive step here."""
        known, token_of = self._tokens, self._token_of
        self._tokens = {state.id: known.get(state.id) or token_of(state.id) for state in states}
        self._by_token = {self._tokens[state.id]: (state,) for state in states}


class ByRendezvous:
    """Placement by rendezvous hashing: the endpoints with the highest scores for the key's slot.

    See `algorithms/rendezvous.py`. When one is removed only its own keys move; when one is added, keys move only to it.
    Endpoints are identified by id.
    """

    def __init__(self) -> None:
        self._orders = SlotOrders()

    def of(self, key: str) -> Sequence[EndpointState]:
        """Return the `DEPTH` best endpoints for the key, best first."""
        return self._orders[hashing.of_name(key) % SLOTS]

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Discard the cached orders; they are computed again on demand."""
        self._orders.learn((state, state.weight) for state in states)


Placement = ByToken | ByRendezvous
"""Maps a key to its endpoints, in order of preference."""
