"""Pool of probe responses for Prequal.

One response per endpoint, the newest, in order of arrival; none older than `oldest` seconds, none used more often than
its `uses`. Between probes the pool corrects itself: a pick adds one to the endpoint's in-flight count. Prequal, NSDI
2024, section 4.
"""

from __future__ import annotations

from math import inf
from typing import Final

from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.selection.two_choices import FAILING

MIN_PROBES: Final = 2
"""Probes that `remove_one` leaves: with fewer there is no choice."""

RECENT_LOADS: Final = 64
"""Recent loads of which the quantile is taken."""

RENEW_EVERY: Final = 16
"""Loads between two updates of the quantile; up to so many loads it is updated at each."""


class ProbeResponse:
    """A probe response: `in_flight` requests, and the latency in seconds at that load.

    It may be used `uses` more times.
    """

    __slots__ = ("at", "in_flight", "latency", "uses")

    def __init__(self, in_flight: int, latency: float, at: float, uses: int) -> None:
        self.in_flight = in_flight
        self.latency = latency
        self.at = at
        self.uses = uses


class ProbePool:
    """Up to `size` probes, none older than `oldest` seconds.

    An endpoint is hot if its load, requests per weight, is above `hot_above`, the quantile `q` of recent loads."""

    def __init__(self, size: int, oldest: float, q: float) -> None:
        self.size = size
        self.hot_above = inf
        self.probes: dict[EndpointState, ProbeResponse] = {}
        self._oldest = oldest
        self._q = q
        self._loads: list[float] = []
        self._unread = 0
        self._removes_worst = False
        self._worst: EndpointState | None = None

    def add(self, state: EndpointState, probe: ProbeResponse) -> None:
        """Add a probe; it replaces the one of the same endpoint, or the oldest if the pool is full."""
        probes = self.probes
        if state in probes:
            del probes[state]
        elif len(probes) >= self.size:
            del probes[next(iter(probes))]
        probes[state] = probe
        loads = self._loads
        loads.append(probe.in_flight / state.weight)
        self._unread += 1
        if self._unread >= RENEW_EVERY or len(loads) <= RENEW_EVERY:
            self._renew()

    def _renew(self) -> None:
        self._unread = 0
        loads = self._loads = self._loads[-RECENT_LOADS:]
        self.hot_above = sorted(loads)[min(len(loads) - 1, int(self._q * len(loads)))]

    def expire(self, now: float) -> None:
        probes, since = self.probes, now - self._oldest
        while probes:
            first = next(iter(probes))
            if probes[first].at >= since:
                break
            del probes[first]

    def best(self, facts: RequestFacts, now: float, least: int) -> EndpointState | None:
        """Return the best endpoint by the hot–cold lexicographic rule. O(size).

        The fastest of the cold that can take the request, a tie going to the less loaded; else the least loaded of the
        hot. None if fewer than `least` can take it."""
        hot_above, tried = self.hot_above, facts.tried
        cold: EndpointState | None = None
        hot: EndpointState | None = None
        slowest: EndpointState | None = None
        busiest: EndpointState | None = None
        quick = slow_load = least_load = inf
        slow = most_load = -1.0
        usable = 0
        for state, probe in self.probes.items():
            if not state.is_selectable or (tried and state.id in tried):
                continue
            usable += 1
            in_flight = probe.in_flight
            load = (in_flight if in_flight > state.in_flight else state.in_flight) / state.weight
            if state.latency.failures:
                load = load_of(state, probe, now)
            if load > hot_above:
                if load < least_load:
                    least_load, hot = load, state
                if load > most_load:
                    most_load, busiest = load, state
                continue
            latency = probe.latency
            if latency < quick or (latency == quick and load < slow_load):
                quick, slow_load, cold = latency, load, state
            if latency > slow:
                slow, slowest = latency, state
        self._worst = slowest if busiest is None else busiest
        if usable < least:
            return None
        return hot if cold is None else cold

    def use(self, state: EndpointState) -> ProbeResponse | None:
        """Count a pick of `state`. Return its probe if it may be used again; the caller must update its latency."""
        probe = self.probes[state]
        probe.in_flight += 1
        probe.uses -= 1
        if probe.uses > 0:
            return probe
        del self.probes[state]
        return None

    def remove_one(self) -> None:
        """Remove the oldest and the worst probe in turn, down to `MIN_PROBES`.

        The worst is the busiest of the hot; if all are cold, the slowest."""
        probes = self.probes
        if len(probes) <= MIN_PROBES:
            return
        self._removes_worst = not self._removes_worst
        worst, self._worst = self._worst, None
        gone = (
            next(iter(probes)) if worst is None or not self._removes_worst or worst not in probes else worst
        )
        del probes[gone]

    def retain(self, members: set[EndpointState]) -> None:
        self.probes = {state: probe for state, probe in self.probes.items() if state in members}
        self._worst = None


def load_of(state: EndpointState, probe: ProbeResponse, now: float) -> float:
    """Return requests per weight, plus the failure penalty, so that fast failures do not attract traffic.

    The count is at least this process's own, as the probe may be old."""
    in_flight = max(probe.in_flight, state.in_flight)
    if state.latency.failures:
        return (in_flight + FAILING * state.failure_penalty(now)) / state.weight
    return in_flight / state.weight
