"""Requests that measure endpoints again: trials of those that were slow or failed, and explorations of stale ones.

They are part of the traffic, bounded to a share of it, and go to idle endpoints alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.stats.service import EndpointService

EXPLORED: Final = "explored"
"""Reason: an endpoint whose measurements are stale, or that was slow or failed, to measure it again."""

EXPLORE: Final = 0.003
"""Largest share of requests that goes to an endpoint whose measurements are stale, to measure it again.

Such a request mostly opens a new connection, so at low request rates a larger share would dominate the p99."""

TRIALS: Final = 0.02
"""Largest share of requests that goes to endpoints that were slow or failed, as trials; those that show a recovery
do not count."""

SAVED_TRIALS: Final = 5.0
"""Trials that may be saved up."""


class Trials:
    """Chooses the requests that are sent to measure an endpoint again.

    `bad` are the endpoints that are suspected to be slow, or have failed and not answered since. `services` has the
    service of each endpoint, `explore` is the share of explorations, and `first` (0..1) a random part of their first
    interval.
    """

    def __init__(self, services: Mapping[str, EndpointService], explore: float, first: float) -> None:
        self.bad: dict[str, EndpointState] = {}
        self._services = services
        self._explore = explore
        self._explorations = first
        self._saved = 1.0
        self._next_at = inf

    def take(self, available: Available, now: float) -> EndpointState | None:
        """Count a request, and return the endpoint to measure with it, if one is due."""
        if self._saved < SAVED_TRIALS:
            self._saved += TRIALS
        self._explorations += self._explore
        explored = self._due(available, now) if now >= self._next_at else None
        if explored is None and self._explorations >= 1.0:
            explored = self._stalest(available, now)
        return explored

    def suspect(self, state: EndpointState, service: EndpointService) -> None:
        """Try the endpoint at the service's `trial_at`."""
        self.bad[state.id] = state
        self._next_at = min(self._next_at, service.trial_at)

    def answered(self, state: EndpointState, now: float) -> None:
        """Take the endpoint off the bad ones. If it was one, try the others of its region now: what disturbed it may
        have disturbed them."""
        if not self.bad or self.bad.pop(state.id, None) is None:
            return
        self._saved += 1.0
        for other in self.bad.values():
            if other.region == state.region:
                self._services[other.id].trial_at = now
                self._next_at = now

    def keep(self, states: Mapping[str, EndpointState]) -> None:
        """Forget endpoints that are not among `states`."""
        self.bad = {id_: state for id_, state in self.bad.items() if states.get(id_) is state}

    def _due(self, available: Available, now: float) -> EndpointState | None:
        """Return an idle endpoint that was slow or failed and whose next trial is due."""
        if self._saved < 1.0:
            return None
        due: EndpointState | None = None
        next_at = inf
        for id_, state in self.bad.items():
            service = self._services[id_]
            if due is None and now >= service.trial_at and not state.in_flight and state in available:
                due = state
                self._saved -= 1.0
                service.plan_trial(now)
            next_at = min(next_at, service.trial_at)
        self._next_at = next_at
        return due

    def _stalest(self, available: Available, now: float) -> EndpointState | None:
        """Return the idle endpoint that was not measured for the longest time, if its measurements are stale."""
        self._explorations = 0.0
        idle = [state for state in available if not state.in_flight and not state.is_measured(now)]
        return min(idle, key=lambda state: state.latency.measured_at) if idle else None
