"""Recovery of an endpoint that was slow, silent or failing: its phase, and when it is tried again.

One enum and one table of transitions. What follows from a phase:

    UNMEASURED   its region's service time counts; NEW_ROOM requests at a time
    NORMAL       costs as estimated
    SUSPECT      slower than usual beyond chance: its usual service time is kept, and what it takes at present is held
                 until an answer comes that is nearer to the former
    FAILING      failed since its last answer: the share of failures is charged
    RECOVERING   gets as many requests as it could serve at the pace that was held, one more with each answer

A suspect or failing endpoint that is idle gets trials, single requests, the later the longer it has been so. Trials are
part of the traffic, bounded to a share of it. After a recovery the others of its region are tried at once: what
disturbed it may have disturbed them.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Final

from policies.endpoint.available import Available
from policies.endpoint.state import TRIAL_AFTER, EndpointState
from policies.stats.latency import FORGET_AFTER

EXPLORED: Final = "explored"
"""Reason: an endpoint whose measurements are stale, or that was slow or failed, to measure it again."""

EXPLORE: Final = 0.003
"""Largest share of requests that goes to an endpoint whose measurements are stale, to measure it again.

Such a request mostly opens a new connection, so at low request rates a larger share would dominate the p99."""

TRIAL_SHARE: Final = 0.02
"""Largest share of requests that are trials; those that show a recovery do not count. Five may be saved up."""

NORMAL_AFTER_S: Final = 20.0
"""Seconds after which a suspect's latency becomes its usual one, or a recovering endpoint is normal."""


MOST_ROOM: Final = 64.0
"""Requests in flight from which a recovering endpoint is normal."""


class Phase(Enum):
    """Phase of an endpoint's recovery."""

    UNMEASURED = "unmeasured"
    NORMAL = "normal"
    SUSPECT = "suspect"
    FAILING = "failing"
    RECOVERING = "recovering"

    __hash__ = object.__hash__


class Event(Enum):
    """What may change the phase."""

    ANSWERED = "answered as fast as expected"
    SLOW = "answers slower than usual, beyond chance"
    CAUGHT_UP = "was much slower than its region and is no more"
    FAILED = "failed"
    LASTED = f"{NORMAL_AFTER_S:g} s in the phase"

    __hash__ = object.__hash__


TRANSITIONS: Final = {
    Phase.UNMEASURED: {Event.ANSWERED: Phase.NORMAL, Event.FAILED: Phase.FAILING},
    Phase.NORMAL: {
        Event.SLOW: Phase.SUSPECT,
        Event.FAILED: Phase.FAILING,
        Event.CAUGHT_UP: Phase.RECOVERING,
    },
    Phase.SUSPECT: {
        Event.ANSWERED: Phase.RECOVERING,
        Event.FAILED: Phase.FAILING,
        Event.LASTED: Phase.NORMAL,
    },
    Phase.FAILING: {Event.ANSWERED: Phase.NORMAL},
    Phase.RECOVERING: {Event.SLOW: Phase.SUSPECT, Event.FAILED: Phase.FAILING, Event.LASTED: Phase.NORMAL},
}
"""The next phase; an event that is not listed changes nothing."""

DOUBTFUL: Final = frozenset((Phase.SUSPECT, Phase.FAILING))
"""Phases in which an endpoint gets no requests but trials, unless all others cost more."""


class Recovery:
    """Phase of one endpoint, `since` when, and its next trial.

    `room` is how many requests it may have in flight. `evidence` is that for a suspect being as fast as usual again."""

    def __init__(self) -> None:
        self.phase = Phase.UNMEASURED
        self.since = -inf
        self.room = self.trial_at = inf
        self.evidence = 0.0

    def note(self, event: Event, now: float, room: float = inf) -> None:
        """Change the phase by what happened; a recovering endpoint has `room` for so many requests."""
        phase = TRANSITIONS[self.phase].get(event)
        if phase is None:
            return
        self.phase, self.since, self.room, self.evidence = phase, now, room, 0.0
        self.trial_at = now + TRIAL_AFTER if phase in DOUBTFUL else inf

    def note_time(self, now: float) -> None:
        """Change the phase if it has lasted for NORMAL_AFTER_S."""
        if now - self.since > NORMAL_AFTER_S:
            self.note(Event.LASTED, now)

    def answered(self, now: float) -> None:
        """Give a recovering endpoint room for one more request."""
        self.room += 1.0
        if self.room > MOST_ROOM:
            self.since = -inf
        self.note_time(now)

    def plan_trial(self, now: float) -> None:
        """Plan the next trial: after a fifth of the time that the doubt has lasted, TRIAL_AFTER to FORGET_AFTER."""
        self.trial_at = now + min(FORGET_AFTER, max(TRIAL_AFTER, 0.2 * (now - self.since)))


class Trials:
    """Chooses the requests that measure an endpoint again. `doubtful` are the endpoints in a DOUBTFUL phase."""

    def __init__(self, explore: float, first: float) -> None:
        self.doubtful: dict[str, tuple[EndpointState, Recovery]] = {}
        self._explore = explore
        self._explorations = first
        self._saved = 1.0
        self._next_at = inf

    def take(self, available: Available, now: float) -> EndpointState | None:
        """Count a request, and return the endpoint to measure with it, if one is due."""
        if self._saved < 5.0:
            self._saved += TRIAL_SHARE
        self._explorations += self._explore
        chosen = self._due(available, now) if now >= self._next_at and self._saved >= 1.0 else None
        if chosen is None and self._explorations >= 1.0:
            self._explorations = 0.0
            stale = [state for state in available if not state.in_flight and not state.is_measured(now)]
            if stale:
                chosen = min(stale, key=lambda state: state.latency.measured_at)
        return chosen

    def doubt(self, state: EndpointState, recovery: Recovery) -> None:
        """Try the endpoint at its `trial_at`."""
        self.doubtful[state.id] = state, recovery
        self._next_at = min(self._next_at, recovery.trial_at)

    def trust(self, state: EndpointState, now: float) -> None:
        """Stop trying the endpoint. If it was doubtful, try the others of its region now."""
        if self.doubtful.pop(state.id, None) is None:
            return
        self._saved += 1.0
        for other, recovery in self.doubtful.values():
            if other.region == state.region:
                recovery.trial_at = self._next_at = now

    def keep(self, states: dict[str, EndpointState]) -> None:
        """Forget endpoints that are not among `states`."""
        self.doubtful = {id_: one for id_, one in self.doubtful.items() if states.get(id_) is one[0]}

    def _due(self, available: Available, now: float) -> EndpointState | None:
        """Return an idle endpoint whose trial is due."""
        due: EndpointState | None = None
        self._next_at = inf
        for state, recovery in self.doubtful.values():
            is_free = state.is_selectable and not state.in_flight
            if due is None and is_free and now >= recovery.trial_at and state in available:
                due = state
                self._saved -= 1.0
                recovery.plan_trial(now)
            self._next_at = min(self._next_at, recovery.trial_at)
        return due
