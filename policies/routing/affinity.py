"""Session affinity: requests with the same key go to one endpoint while it is available.

A wrapper around any policy. Requests without a key, or whose endpoints are not available, go where the inner policy
picks, so affinity never fails a request. No state is kept per client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import log
from typing import Protocol

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.insight.explanation import WrappingPolicy
from policies.policy import Policy
from policies.selection import hashing

SLOTS = 16_384
"""Number of slots that keys hash to. The endpoint order of a slot is computed once, so a request costs the same for any
number of endpoints. With fifty endpoints each has some three hundred slots, so shares differ by a twentieth."""

DEPTH = 4
"""Endpoints of a key that are tried in turn before the inner policy picks."""


KEPT = "kept"
"""Reason: session affinity, the endpoint that the key maps to."""

MOVED = "moved"
"""Reason: another endpoint than session affinity wants, which is not available. If the inner policy picked it, its
reasons follow."""


class Placement(Protocol):
    """Maps a key to its endpoints, in order of preference."""

    def of(self, key: str) -> Sequence[EndpointState]: ...
    def members_changed(self, states: Sequence[EndpointState]) -> None: ...


@dataclass(slots=True)
class StickyCounts:
    """Counts of requests with a key: `kept` went to the key's first endpoint, `moved` to another."""

    kept: int = 0
    moved: int = 0


class Sticky(WrappingPolicy):
    """A policy that prefers the endpoints that `placement` gives for the request's key."""

    def __init__(self, inner: Policy, placement: Placement, counts: StickyCounts | None = None) -> None:
        self.inner = inner
        self.counts = counts or StickyCounts()
        self._placement = placement
        # the router calls each that it finds
        for hook in ("observe", "tick", "probes", "observe_probe", "doubts"):
            if hasattr(inner, hook):
                setattr(self, hook, getattr(inner, hook))

    def inner_policies(self) -> Iterable[Policy]:
        """Return the inner policy, whose reasons follow."""
        return (self.inner,)

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

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Update the placement and notify the inner policy."""
        self._placement.members_changed(states)
        hook = getattr(self.inner, "members_changed", None)
        if hook is not None:
            hook(states, now)


class ByToken:
    """Placement by token: a key, such as the balancer's cookie, is the token of one endpoint, or unknown."""

    def __init__(self, token_of: Callable[[str], str]) -> None:
        self._token_of = token_of
        self._by_token: dict[str, tuple[EndpointState, ...]] = {}
        self._tokens: dict[str, str] = {}

    def of(self, key: str) -> Sequence[EndpointState]:
        """Return the endpoint with this token, or an empty sequence."""
        return self._by_token.get(key, ())

    def members_changed(self, states: Sequence[EndpointState]) -> None:
        """Rebuild the table; only new endpoints have their token hashed, which is the most expensive step here."""
        known, token_of = self._tokens, self._token_of
        self._tokens = {state.id: known.get(state.id) or token_of(state.id) for state in states}
        self._by_token = {self._tokens[state.id]: (state,) for state in states}


class ByRendezvous:
    """Placement by rendezvous hashing: the endpoints with the highest scores for the key's slot.

    Thaler and Ravishankar 1998; weighted by w / −ln u (Schindelhauer and Schomaker 2005): each endpoint gets its share.
    When one is removed only its own keys move; when one is added, keys move only to it. Endpoints are identified by id.
    """

    def __init__(self) -> None:
        self._states: list[tuple[EndpointState, int]] = []
        self._orders: dict[int, tuple[EndpointState, ...]] = {}

    def of(self, key: str) -> Sequence[EndpointState]:
        """Return the `DEPTH` best endpoints for the key, best first."""
        slot = hashing.of_name(key) % SLOTS
        order = self._orders.get(slot)
        if order is None:
            order = self._orders[slot] = self._order(hashing.mixed(slot + 1))
        return order

    def members_changed(self, states: Sequence[EndpointState]) -> None:
        """Discard the cached orders; they are computed again on demand."""
        self._states = [(state, hashing.of_name(state.id)) for state in states]
        self._orders = {}

    def _order(self, slot: int) -> tuple[EndpointState, ...]:
        scores = [(_score(state.weight, slot ^ own), -at) for at, (state, own) in enumerate(self._states)]
        return tuple(self._states[-at][0] for _, at in nlargest(DEPTH, scores))


def _score(weight: float, hashed: int) -> float:
    return -weight / log((hashing.mixed(hashed) + 1) / (hashing.MASK + 2))
