"""Detection of late attempts, and hedging of them at a second endpoint.

Uses the balancer's rules and budget (`policies/overload/hedging.py`), a timer wheel of 5 ms and the same choice of the
second endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from experiments.simulator.attempt import SimulatedAttempt
from experiments.simulator.clock import Call, EventQueue
from policies.facts import OutcomeKind
from policies.overload.hedging import SEARCH_EVERY, TICK, Hedging
from policies.routing.router import Router

_OK: Final = OutcomeKind.OK

Race = Callable[[SimulatedAttempt, frozenset[str], float], None]


class Hedges:
    """Hedging of one balancer. `race` sends a second attempt to an endpoint that is not one of those named.

    The wheel holds the attempts that become late in each tick.
    """

    def __init__(self, router: Router, race: Race, agenda: EventQueue, hedging: Hedging) -> None:
        self.hedging = hedging
        self._router = router
        self._race = race
        self._agenda = agenda
        self._wheel: dict[int, list[SimulatedAttempt]] = {}
        self._attempts: list[SimulatedAttempt] = []
        self._is_searching = False

    def watch(self, attempt: SimulatedAttempt, now: float) -> None:
        """Schedule the check whether a newly routed attempt is late."""
        self._attempts.append(attempt)
        if not self._is_searching:
            self._is_searching = True
            self._agenda.add(now + SEARCH_EVERY, Call(self._search))
        tick = int((now + self.hedging.wait(attempt.assignment.state)) / TICK) + 1
        bucket = self._wheel.get(tick)
        if bucket is None:
            bucket = self._wheel[tick] = []
            self._agenda.add(tick * TICK, Call(partial(self._turn, tick)))
        bucket.append(attempt)

    def _search(self, now: float) -> None:
        """Hedge the requests in flight at silent endpoints, and search again later while any is in flight."""
        self._attempts = [attempt for attempt in self._attempts if not attempt.is_over]
        self._is_searching = bool(self._attempts)
        if self._is_searching:
            self._agenda.add(now + SEARCH_EVERY, Call(self._search))
        for state in self.hedging.silent(self._router.states, now):
            sent_before = now - state.latency.mean
            for attempt in self._attempts:
                assignment = attempt.assignment
                if (
                    assignment.state is state
                    and assignment.routed_at < sent_before
                    and self.hedging.has_budget
                ):
                    self.hedge(attempt, now)

    def _turn(self, tick: int, now: float) -> None:
        """Judge the attempts of a bucket and hedge the late ones."""
        for attempt in self._wheel.pop(tick):
            state = attempt.assignment.state
            if not attempt.is_over:
                self.hedging.record(state, None, now)
                self.hedge(attempt, now)
            elif attempt.kind is _OK:
                self.hedging.record(state, attempt.ended_at - attempt.assignment.routed_at, now)

    def hedge(self, attempt: SimulatedAttempt, now: float) -> None:
        """Hedge an attempt that is late or at an endpoint that the policy doubts, if the rules allow it."""
        if attempt.is_over or attempt.rival is not None or attempt.is_loser:
            return
        router = self._router
        others = self.hedging.others(attempt.assignment.state, router.available)
        if others and router.has_room and self.hedging.take(now):
            wanted = {state.id for state in others}
            avoided = frozenset(state.id for state in router.available if state.id not in wanted)
            self._race(attempt, avoided, now)
