"""Requests that belong together go to one endpoint, for as long as it can take them.

Rule of this file: a wrapper around any policy. What has no key, and what an endpoint cannot take now, is the inner
policy's to place; so stickiness never costs a request. Nothing is remembered of any client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import log
from typing import Protocol

from policies import hashing
from policies.insight.explanation import Around
from policies.policy import Policy
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import RequestFacts

SLOTS = 16_384
"""Keys share slots, and a slot's order of endpoints is worked out once: a request then costs the same for any number
of them. With fifty endpoints each has some three hundred slots, so shares differ by a twentieth."""

DEPTH = 4
"""Endpoints that are asked, one after the other, before the inner policy is."""


KEPT = "kept"
"""The endpoint that the key belongs to."""

MOVED = "moved"
"""Another one, because whom the key belongs to cannot take it. Where it is the inner policy's, its reasons follow."""


class Placement(Protocol):
    """Which endpoints a key belongs to, the first one first."""

    def of(self, key: str) -> Sequence[EndpointState]: ...
    def members_changed(self, states: Sequence[EndpointState]) -> None: ...


@dataclass(slots=True)
class StickyCounts:
    """Requests with a key: `kept` were placed by it, `moved` belonged to endpoints that could not take them."""

    kept: int = 0
    moved: int = 0


class Sticky(Around):
    """A policy that asks `placement` first."""

    def __init__(self, inner: Policy, placement: Placement, counts: StickyCounts | None = None) -> None:
        self.inner = inner
        self.counts = counts or StickyCounts()
        self._placement = placement
        for hook in (
            "observe",
            "tick",
            "probes",
            "observe_probe",
        ):  # only those that there are: the router asks once, and pays for each
            if hasattr(inner, hook):
                setattr(self, hook, getattr(inner, hook))

    def inside(self) -> Iterable[Policy]:
        """Whom it asks."""
        return (self.inner,)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """The first of the key's endpoints that can take it, else whom the inner policy picks."""
        if facts.key is not None:
            order = self._placement.of(facts.key)
            for state in order:
                if state.is_listed and state.id not in facts.tried:
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
        """Endpoints have come, gone, or become others."""
        self._placement.members_changed(states)
        hook = getattr(self.inner, "members_changed", None)
        if hook is not None:
            hook(states, now)


class ByToken:
    """A key is the token of one endpoint, such as a cookie of ours holds; one that we do not know is nobody's."""

    def __init__(self, token_of: Callable[[str], str]) -> None:
        self._token_of = token_of
        self._by_token: dict[str, tuple[EndpointState, ...]] = {}
        self._tokens: dict[str, str] = {}

    def of(self, key: str) -> Sequence[EndpointState]:
        """The endpoint whose token it is, if it is one's."""
        return self._by_token.get(key, ())

    def members_changed(self, states: Sequence[EndpointState]) -> None:
        """Tokens are worked out for those that are new: each is a hash, which takes longer than all else here."""
        known, token_of = self._tokens, self._token_of
        self._tokens = {state.id: known.get(state.id) or token_of(state.id) for state in states}
        self._by_token = {self._tokens[state.id]: (state,) for state in states}


class ByRendezvous:
    """Any key: the endpoints with the highest scores for its slot (rendezvous hashing, Thaler and Ravishankar 1998).

    Weighted by w / −ln u (Schindelhauer and Schomaker 2005): each gets its share, and when one goes only its own keys
    move, those of others when one comes only to it. Endpoints are told apart by id.
    """

    def __init__(self) -> None:
        self._states: list[tuple[EndpointState, int]] = []
        self._orders: dict[int, tuple[EndpointState, ...]] = {}

    def of(self, key: str) -> Sequence[EndpointState]:
        """The best of them; the others follow in nobody's order."""
        slot = hashing.of_name(key) % SLOTS
        order = self._orders.get(slot)
        if order is None:
            order = self._orders[slot] = self._order(hashing.mixed(slot + 1))
        return order

    def members_changed(self, states: Sequence[EndpointState]) -> None:
        """Orders are worked out anew when they are asked for."""
        self._states = [(state, hashing.of_name(state.id)) for state in states]
        self._orders = {}

    def _order(self, slot: int) -> tuple[EndpointState, ...]:
        scores = [(_score(state.weight, slot ^ own), -at) for at, (state, own) in enumerate(self._states)]
        return tuple(self._states[-at][0] for _, at in nlargest(DEPTH, scores))


def _score(weight: float, hashed: int) -> float:
    return -weight / log((hashing.mixed(hashed) + 1) / (hashing.MASK + 2))
