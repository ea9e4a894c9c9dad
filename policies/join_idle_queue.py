"""Join-idle-queue: idle endpoints stand in line for requests.

Rule of this file: Lu, Xie, Kliot, Geller, Larus and Greenberg, "Join-Idle-Queue: A Novel Load Balancing Algorithm for
Dynamically Scalable Web Services", Performance Evaluation 68 (2011), section 3. Whoever becomes idle joins the line; a
request goes to its head, and to anyone at random, by weight, where nobody stands there.

The line is never trusted. Who stands at its head is looked at when its turn comes: if it has requests, whoever sent
them, it leaves the line until it is idle again. If it is idle but may not be used it steps aside, and joins again when
it may: an endpoint that came back and was in no line would have to wait for a request at random.
"""

from __future__ import annotations

from collections import OrderedDict
from random import Random

from policies.insight.explanation import Trace
from policies.random_choice import RandomChoice
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import Outcome, RequestFacts

IDLE = "idle"
"""The head of the line of idle endpoints."""

NOBODY_IDLE = "nobody-idle"
"""The line is empty: at random."""


class JoinIdleQueue:
    """An idle endpoint, the one that has waited longest; at random, by weight, where nobody is idle."""

    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._at_random = RandomChoice(rng)
        self._line: OrderedDict[EndpointState, None] = OrderedDict()
        self._aside: dict[EndpointState, None] = {}
        self._size = 0

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """New ones come in at any place, or every balancer would begin with the same."""
        self._at_random.members_changed(states, now)
        members = set(states)
        for group in (self._line, self._aside):
            for state in [state for state in group if state not in members]:
                del group[state]
        new = [s for s in states if s not in self._line and s not in self._aside and not s.in_flight]
        self._rng.shuffle(new)
        self._line.update(dict.fromkeys(new))

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Who has nothing left to do joins the line."""
        if not state.in_flight and state.is_member and state not in self._aside:
            self._line[state] = None
            self._line.move_to_end(state)

    def tick(self, now: float) -> None:
        """Who stepped aside tries again."""
        self._rejoin()

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """O(1) on average: whoever is passed over leaves the line. O(n) at most after many have gone or come."""
        if len(available) != self._size:  # somebody has gone or come
            self._size = len(available)
            self._rejoin()
        state = self._head(facts, now)
        reason = IDLE
        if state is None:
            state = self._at_random.pick(facts, available, now)
            reason = NOBODY_IDLE
        if self.trace is not None:
            self.trace.note(reason, (state,), (state.in_flight,))
        return state

    def _head(self, facts: RequestFacts, now: float) -> EndpointState | None:
        """The first of the line that is idle and may be used. It goes to the end, to be looked at again in its
        turn."""
        line = self._line
        for _ in range(len(line)):
            state = next(iter(line))
            if not state.in_flight and is_welcome(state, facts, now):
                line.move_to_end(state)
                return state
            del line[state]
            if not state.in_flight:
                self._aside[state] = None
        return None

    def _rejoin(self) -> None:
        self._line.update(self._aside)
        self._aside.clear()


def is_welcome(state: EndpointState, facts: RequestFacts, now: float) -> bool:
    """Whether it may take the request, and has not just failed others."""
    is_on_offer = state.is_listed and state.id not in facts.tried
    return is_on_offer and not (state.latency.failures and state.blame(now))
