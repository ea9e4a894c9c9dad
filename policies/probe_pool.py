"""Answers to probes, waiting to be used.

Rule of this file: one per endpoint, the newest, in the order in which they came; none older than `oldest` seconds, none
used more often than it may be. Between probes the pool keeps itself honest: who is sent a request is counted one
busier at once. Prequal, NSDI 2024, section 4.
"""

from __future__ import annotations

from math import inf
from typing import Final

from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import RequestFacts
from policies.two_choices import FAILING

LEFT: Final = 2
"""Probes that removal leaves: with fewer there is no choice."""

RECENT: Final = 64
"""Loads heard of lately, of which the quantile is taken."""

RENEW_EVERY: Final = 16
"""Loads between two renewals of the quantile; among few, each one counts."""


class Probe:
    """What one endpoint has answered: `in_flight` requests, and the latency in seconds that it has with so many. To
    be used so many `uses` more."""

    __slots__ = ("at", "in_flight", "latency", "uses")

    def __init__(self, in_flight: int, latency: float, at: float, uses: int) -> None:
        self.in_flight = in_flight
        self.latency = latency
        self.at = at
        self.uses = uses


class ProbePool:
    """Up to `size` probes, none over `oldest` seconds. Hot is whose load, requests per weight, is above the quantile
    `q` of the loads that were heard of lately: above `hot_above`."""

    def __init__(self, size: int, oldest: float, q: float) -> None:
        self.size = size
        self.hot_above = inf
        self.probes: dict[EndpointState, Probe] = {}
        self._oldest = oldest
        self._q = q
        self._loads: list[float] = []
        self._unread = 0
        self._removes_worst = False
        self._worst: EndpointState | None = None

    def add(self, state: EndpointState, probe: Probe) -> None:
        """Instead of what was known of that endpoint; the oldest goes where there is no room."""
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
        loads = self._loads = self._loads[-RECENT:]
        self.hot_above = sorted(loads)[min(len(loads) - 1, int(self._q * len(loads)))]

    def expire(self, now: float) -> None:
        """Let those go that are too old."""
        probes, since = self.probes, now - self._oldest
        while probes:
            first = next(iter(probes))
            if probes[first].at >= since:
                break
            del probes[first]

    def best(self, facts: RequestFacts, now: float, least: int) -> EndpointState | None:
        """Hot–cold lexicographic: the quickest of the cold that can take the request, the less loaded of equals; else
        the least loaded of the hot. None if fewer than `least` can take it. O(size)."""
        hot_above, tried = self.hot_above, facts.tried
        cold: EndpointState | None = None
        hot: EndpointState | None = None
        slowest: EndpointState | None = None
        busiest: EndpointState | None = None
        quick = slow_load = least_load = inf
        slow = most_load = -1.0
        usable = 0
        for state, probe in self.probes.items():
            if not state.is_listed or (tried and state.id in tried):
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

    def use(self, state: EndpointState) -> Probe | None:
        """A request goes there. Returns the answer if it may be used again: what its latency is now, others know."""
        probe = self.probes[state]
        probe.in_flight += 1
        probe.uses -= 1
        if probe.uses > 0:
            return probe
        del self.probes[state]
        return None

    def remove_one(self) -> None:
        """The oldest and the worst in turn, while some are left. The worst is the busiest of the hot; where all are
        cold, the slowest."""
        probes = self.probes
        if len(probes) <= LEFT:
            return
        self._removes_worst = not self._removes_worst
        worst, self._worst = self._worst, None
        gone = (
            next(iter(probes)) if worst is None or not self._removes_worst or worst not in probes else worst
        )
        del probes[gone]

    def follow(self, members: set[EndpointState]) -> None:
        """Only these are left."""
        self.probes = {state: probe for state, probe in self.probes.items() if state in members}
        self._worst = None


def load_of(state: EndpointState, probe: Probe, now: float) -> float:
    """Requests per weight, ours at least: an answer may be old. Who fails seems much busier, so that quick failures do
    not attract."""
    in_flight = max(probe.in_flight, state.in_flight)
    if state.latency.failures:
        return (in_flight + FAILING * state.blame(now)) / state.weight
    return in_flight / state.weight
