"""Base of the policies that send a key to the same endpoint every time (consistent hashing).

An unavailable endpoint is skipped, never removed. The tables depend only on the names and weights of the configured
endpoints, so a change of availability moves the keys of that endpoint and no others, and balancers agree without
communication. A key of an endpoint in slow start goes to it as soon as its share reaches the key's number, so keys
arrive a few at a time, and none goes back and forth.

Only `max_in_flight`, ejection and checks keep a key from its endpoint, however loaded that is: that is what affinity
means. `load_bound` relaxes it: bounded load (Mirrokni, Thorup and Zadimoghaddam, Consistent Hashing with Bounded Loads,
SODA 2018) skips an endpoint that holds `load_bound` times its share of what is in flight.

A request without a key goes to the less loaded of two endpoints drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, Final

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import NONE_TRIED, Outcome, RequestFacts
from policies.insight.explanation import Trace
from policies.options import above
from policies.selection import hashing
from policies.selection.two_choices import less_loaded_of_two

OWNER = "owner"
"""Reason: the endpoint that the key belongs to."""

NEXT_OWNER = "next-owner"
"""Reason: a later endpoint in the key's order, because those before cannot take it. Scores are requests in flight per
weight."""

NO_KEY = "no-key"
"""Reason: the request has no key; the reason for the pick follows."""

_UNIT: Final = 2.0**-32

LoadBound = Annotated[
    float,
    "multiple of its share of the requests in flight above which an endpoint is passed over, such as 1.25",
    above(1, zero="off"),
]


class ConsistentHashPolicy:
    """Base class: picks the first endpoint in the key's order that can take the request.

    A subclass implements `owner` and `owners`, which get the key's 64-bit hash, and `learn`, which gets the endpoints
    after a change.
    """

    trace: Trace | None = None

    def __init__(self, rng: Random, load_bound: float) -> None:
        self._random = rng.random
        self._load_bound = load_bound
        if load_bound:  # without a bound no count is needed
            self.observe = self._settled
            self.tick = self._count_anew
        self._states: Sequence[EndpointState] = ()
        self._known: list[tuple[EndpointState, float]] = []
        self._in_flight = 0  # at all of them: updated between two sums, as a sum is O(n)
        self._size = 0
        self._weight = 0.0  # sum of the available ones

    def owner(self, hashed: int) -> EndpointState:
        """Return the first endpoint of `owners`, without the generator's cost."""
        raise NotImplementedError

    def owners(self, hashed: int) -> Iterable[EndpointState]:
        """Yield the endpoints in the key's order. Some may be missing, or appear more than once."""
        raise NotImplementedError

    def learn(self, states: Sequence[EndpointState]) -> None:
        """Build the tables for these endpoints and weights."""
        raise NotImplementedError

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the first endpoint in the key's order that can take it. As fast as `owner`, if the owner can."""
        key = facts.key
        if key is None:
            if self.trace is not None:
                self.trace.note(NO_KEY)
            state = less_loaded_of_two(available, self._random, now, self.trace)
        else:
            hashed = hashing.of_key(key)
            state = self.owner(hashed)
            if (
                not state.is_selectable
                or state.share < 1.0
                or self._load_bound
                or facts.tried is not NONE_TRIED
            ):
                state = self._first_available(hashed, facts, available, now)
            elif self.trace is not None:
                self.trace.note(OWNER, (state,))
        if self._load_bound:
            self._in_flight += 1
        return state

    def _first_available(
        self, hashed: int, facts: RequestFacts, available: Available, now: float
    ) -> EndpointState:
        number = (hashed & 0xFFFFFFFF) * _UNIT
        most = self._most_per_weight(available) if self._load_bound else 0.0
        passed: list[EndpointState] = []
        seen: set[EndpointState] = set()
        for state in self.owners(hashed):
            if state in seen:
                continue
            seen.add(state)
            passed.append(state)
            if not state.is_selectable or state.id in facts.tried or number >= state.share:
                continue
            if not most or state.in_flight < most * state.weight:
                self._explain(passed)
                return state
        self._explain(passed)
        return less_loaded_of_two(available, self._random, now, self.trace)

    def _most_per_weight(self, available: Available) -> float:
        """Return the load per weight below which an endpoint may take one more request."""
        if len(available) != self._size:
            self._size = len(available)
            self._weight = sum(state.weight for state in available)
        return self._load_bound * (max(0, self._in_flight) + 1) / self._weight

    def _explain(self, passed: Sequence[EndpointState]) -> None:
        if self.trace is not None:
            loads = [state.in_flight / state.weight for state in passed]
            self.trace.note(OWNER if len(passed) == 1 else NEXT_OWNER, passed, loads)

    def _settled(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        self._in_flight -= 1

    def _count_anew(self, now: float) -> None:
        """Sum up what is in flight, to include the requests of sibling processes."""
        self._in_flight = sum(state.in_flight for state in self._states)
        self._size = 0

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Call `learn` if endpoints or weights have changed, and not only a slow-start share."""
        self._states = states
        self._count_anew(now)
        known = [(state, state.endpoint.weight) for state in states]
        if known != self._known:
            self._known = known
            self.learn(states)
