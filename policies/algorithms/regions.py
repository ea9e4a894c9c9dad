"""Policies that choose a region first, in turn or always the same, and their base: one child policy per region."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Annotated, Any

from policies.algorithms.least_in_flight import LeastInFlight
from policies.algorithms.round_robin import RoundRobin
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, Region, ReportedLoad, RequestFacts
from policies.insight.explanation import WrappingPolicy, set_trace
from policies.policy import Policy, PolicyMaker

REGION_IN_TURN = "region-in-turn"
"""Reason: the region whose last turn is longest ago. Scores are the numbers of the regions' last turns."""

ITS_REGION = "its-region"
"""Reason: the configured region is available."""

REGION_UNAVAILABLE = "region-unavailable"
"""Reason: the configured region has no available endpoint."""


def _nothing(*arguments: Any) -> Sequence[EndpointState]:
    """Stand in for a hook that a child policy does not have."""
    return ()


class PerRegion(WrappingPolicy):
    """Base class with a child policy per region, made on first use: a shared one would mix up their turns."""

    def __init__(self, make: PolicyMaker, rng: Random) -> None:
        self._make = make
        self._rng = rng
        self._children: dict[Region, Policy] = {}
        self._inner = self._children.values()
        self._states: Sequence[EndpointState] = ()
        self._picked_by: Policy | None = None
        if hasattr(make(Random(0)), "probes"):  # the router calls every hook that it finds
            self.probes = self._probes
            self.observe_probe = self._observe_probe

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self._states = states
        for region in self._children:
            self._tell(region, now)

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        hook = getattr(self._children.get(state.region), "observe", None)
        if hook is not None:
            hook(state, outcome, now)

    def tick(self, now: float) -> None:
        for region in self._children:
            self._hook(region, "tick")(now)

    def pick_in(self, region: Region, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Let the region's child policy pick among the region's endpoints."""
        if region not in self._children:
            fresh = self._children[region] = self._make(self._rng)
            set_trace(fresh, self._trace)
            self._tell(region, now)
        child = self._picked_by = self._children[region]
        return child.pick(facts, available.regions[region], now)

    def _probes(self, now: float) -> Sequence[EndpointState]:
        """Return the endpoints that the child of the last pick wants probed."""
        probed: Sequence[EndpointState] = getattr(self._picked_by, "probes", _nothing)(now)
        return probed

    def _observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        self._hook(state.region, "observe_probe")(state, load, latency, now)

    def _tell(self, region: Region, now: float) -> None:
        members = [state for state in self._states if state.region == region]
        self._hook(region, "members_changed")(members, now)

    def _hook(self, region: Region, name: str) -> Callable[..., Any]:
        """Return a hook of the region's child, or what does nothing."""
        hook: Callable[..., Any] = getattr(self._children.get(region), name, _nothing)
        return hook


class RegionRoundRobin(PerRegion):
    """Regions in turn, and within each an inner policy (round-robin by default).

    Every region gets the same share, whatever the number and weights of its workers.
    """

    keeps_to_regions = True

    def __init__(
        self, rng: Random, *, inner: Annotated[PolicyMaker, "policy within a region"] = RoundRobin
    ) -> None:
        super().__init__(inner, rng)
        self._turn = 0
        self._last_turns: defaultdict[int | None, Counter[Region]] = defaultdict(Counter)  # by level

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick in the region whose last turn is longest ago, an order that survives regions that vanish and return.

        O(regions).
        """
        turns = self._last_turns[facts.level]
        region = min(available.regions, key=turns.__getitem__)
        if self._trace is not None:
            self._trace.note(REGION_IN_TURN, available.regions, [turns[name] for name in available.regions])
        self._turn += 1
        turns[region] = self._turn
        return self.pick_in(region, facts, available, now)


class SingleRegion(PerRegion):
    """Only the configured region, and within it an inner policy (least in flight by default).

    While no endpoint of it is available, requests go to another region: a response from afar is better than none.
    """

    keeps_to_regions = True

    def __init__(
        self,
        rng: Random,
        *,
        region: Annotated[Region, "the only region that is used while it has an available endpoint"],
        inner: Annotated[PolicyMaker, "policy within it"] = LeastInFlight,
    ) -> None:
        super().__init__(inner, rng)
        self._region = region

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick in the configured region if it is available. O(1) beside the inner policy."""
        is_there = self._region in available.regions
        region = self._region if is_there else next(iter(available.regions))
        if self._trace is not None:
            self._trace.note(ITS_REGION if is_there else REGION_UNAVAILABLE, (self._region,))
        return self.pick_in(region, facts, available, now)
