"""Join-idle-queue: idle endpoints queue up for requests.

Lu, Xie, Kliot, Geller, Larus and Greenberg, "Join-Idle-Queue: A Novel Load Balancing Algorithm for Dynamically Scalable
Web Services", Performance Evaluation 68 (2011), section 3. An endpoint that becomes idle joins the queue; a request
goes to the head of the queue, or to an endpoint at random, by weight, if the queue is empty.

The head is validated when its turn comes: if it has requests, of whichever process, it leaves the queue until it is
idle again. If it is idle but may not be used it is set aside, and rejoins when it may: an endpoint that came back and
was in no queue would have to wait for a request at random.
"""

from __future__ import annotations

from collections import OrderedDict
from random import Random

from policies.algorithms.random_choice import RandomChoice
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, RequestFacts
from policies.insight.explanation import Trace

IDLE = "idle"
"""Reason: the head of the queue of idle endpoints."""

NONE_IDLE = "none-idle"
"""Reason: the queue is empty, so at random."""


class JoinIdleQueue:
    """Join-idle-queue: the endpoint that has been idle longest; at random, by weight, if none is idle."""

    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._at_random = RandomChoice(rng)
        self._line: OrderedDict[EndpointState, None] = OrderedDict()
        self._aside: dict[EndpointState, None] = {}
        self._size = 0

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Add new endpoints in random order, or every balancer would begin with the same one."""
        self._at_random.members_changed(states, now)
        members = set(states)
        for group in (self._line, self._aside):
            for state in [state for state in group if state not in members]:
                del group[state]
        new = [s for s in states if s not in self._line and s not in self._aside and not s.in_flight]
        self._rng.shuffle(new)
        self._line.update(dict.fromkeys(new))

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Append the endpoint to the queue if it is idle now."""
        if not state.in_flight and state.is_member and state not in self._aside:
            self._line[state] = None
            self._line.move_to_end(state)

    def tick(self, now: float) -> None:
        self._rejoin()

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick in O(1) on average, as each endpoint skipped leaves the queue; O(n) at most after many changes."""
        if len(available) != self._size:  # availability has changed
            self._size = len(available)
            self._rejoin()
        state = self._head(facts, now)
        reason = IDLE
        if state is None:
            state = self._at_random.pick(facts, available, now)
            reason = NONE_IDLE
        if self.trace is not None:
            self.trace.note(reason, (state,), (state.in_flight,))
        return state

    def _head(self, facts: RequestFacts, now: float) -> EndpointState | None:
        """Move the first usable idle endpoint of the queue to its end and return it; None if there is none."""
        line, head, leaving = self._line, None, []
        for state in line:
            if state.id in facts.tried:  # it keeps its place: the next request may go there
                continue
            if not state.in_flight and is_usable(state, now):
                head = state
                break
            leaving.append(state)
        for state in leaving:
            del line[state]
            if not state.in_flight:
                self._aside[state] = None
        if head is not None:
            line.move_to_end(head)
        return head

    def _rejoin(self) -> None:
        self._line.update(self._aside)
        self._aside.clear()


def is_usable(state: EndpointState, now: float) -> bool:
    """Whether it may take requests and has no failure penalty."""
    return state.is_selectable and not (state.latency.failures and state.failure_penalty(now))
