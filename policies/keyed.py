"""What policies share that send a key to the same endpoint every time.

Rule of this file: who is not available now is passed over, never taken out. What was worked out from the names and
weights of the endpoints stands while they stay, so a flip moves the keys of who has flipped and no others, and
balancers beside each other agree without a word. A key of an endpoint that starts slowly is its own as soon as its
share reaches the key's number, so keys come to it a few at a time, and none goes back and forth.

Nothing but `max_in_flight`, ejection and checks keeps a key from its endpoint, however loaded that is: that is what
affinity means. `load_bound` is for who wants less of it: bounded load (Mirrokni, Thorup and Zadimoghaddam, Consistent
Hashing with Bounded Loads, SODA 2018) passes over who holds `load_bound` times its part of what is in flight.

A request without a key has no place: it goes to the less loaded of two drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from policies import hashing
from policies.errors import BadPolicyOption
from policies.insight.explanation import Trace
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import NOBODY, Outcome, RequestFacts
from policies.two_choices import less_loaded_of_two

OWNER = "owner"
"""The endpoint that the key belongs to."""

NEXT_OWNER = "next-owner"
"""The next one that the key belongs to, because those before cannot take it. Scores are requests in flight per
weight."""

NO_KEY = "no-key"
"""The request has none; what follows is why it went where it went."""

_UNIT: Final = 2.0**-32


class Keyed:
    """To be derived from: the endpoint that a key belongs to, and who comes next.

    `owner` and `owners` are asked with the key's number of 64 bits, `learn` is told of the endpoints when they are
    others than before.
    """

    trace: Trace | None = None

    def __init__(self, rng: Random, load_bound: float) -> None:
        if load_bound and not load_bound > 1:
            raise BadPolicyOption("load_bound", f"must be above 1, or 0 for none, got {load_bound}")
        self._random = rng.random
        self._load_bound = load_bound
        if load_bound:  # else nobody need count
            self.observe = self._settled
            self.tick = self._count_anew
        self._states: Sequence[EndpointState] = ()
        self._known: list[tuple[EndpointState, float]] = []
        self._in_flight = 0  # at all of them: counted on between two looks, for a sum is O(n)
        self._size = 0
        self._weight = 0.0  # of those available

    def owner(self, hashed: int) -> EndpointState:
        """The first of `owners`."""
        raise NotImplementedError

    def owners(self, hashed: int) -> Iterable[EndpointState]:
        """Whom the key belongs to, one after the other. Some may be missing, and come more than once."""
        raise NotImplementedError

    def learn(self, states: Sequence[EndpointState]) -> None:
        """Endpoints have come or gone, or their weights are others."""
        raise NotImplementedError

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """The first of the key's endpoints that can take it. As quick as `owner`, where that one can."""
        key = facts.key
        if key is None:
            if self.trace is not None:
                self.trace.note(NO_KEY)
            state = less_loaded_of_two(available, self._random, now, self.trace)
        else:
            hashed = hashing.of_key(key)
            state = self.owner(hashed)
            if not state.is_listed or state.share < 1.0 or self._load_bound or facts.tried is not NOBODY:
                state = self._first_who_can(hashed, facts, available, now)
            elif self.trace is not None:
                self.trace.note(OWNER, (state,))
        if self._load_bound:
            self._in_flight += 1
        return state

    def _first_who_can(
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
            if not state.is_listed or state.id in facts.tried or number >= state.share:
                continue
            if not most or state.in_flight < most * state.weight:
                self._explain(passed)
                return state
        self._explain(passed)
        return less_loaded_of_two(available, self._random, now, self.trace)

    def _most_per_weight(self, available: Available) -> float:
        """What each must hold less than, per weight, to take one more."""
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
        """Other processes have some in flight, too."""
        self._in_flight = sum(state.in_flight for state in self._states)
        self._size = 0

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Learn who there is, if that is news: this is called as well when somebody's share has grown."""
        self._states = states
        self._count_anew(now)
        known = [(state, state.endpoint.weight) for state in states]
        if known != self._known:
            self._known = known
            self.learn(states)
