"""Headroom: a lost region does not overload the nearest, and balancers with stale reports do not oscillate.

The offered rate is 340 requests a second from "a" alone, or 360 from three regions, before regions of 200 each. With
"a" lost, all of its load beside b's own would be 1.3 times the capacity of "b"; "b" and "c" together are loaded to
0.9 at most.
"""

from __future__ import annotations

from math import sqrt
from random import Random
from statistics import mean, stdev
from typing import Any

import pytest

from policies import Available, EndpointState, Outcome, OutcomeKind, RequestFacts, make
from policies.algorithms.region_aware import BAND, Headroom, Room
from policies.contract import endpoints
from policies.policy import PolicyMaker
from tests.policies.region_simulation import World
from tests.support.traces import traced

AWAY = {"ab": 0.1, "ac": 0.2, "bc": 0.2}
OWN = {0: 160.0, 1: 100.0, 2: 60.0}


def rtt(home: str, region: str) -> float:
    return 0.002 if home == region else AWAY["".join(sorted(home + region))]


def aware(**options: Any) -> PolicyMaker:
    return lambda rng: make("region-aware", options, rng)


def lose_region_a(make_policy: PolicyMaker, homes: str, rates: dict[int, float], **options: Any) -> World:
    """Ten seconds, then thirty without "a", then ten with it again."""
    world = World(make_policy, "abc", homes, rtt, **options)
    for seconds, then in ((10, world.lose), (30, world.restore), (10, None)):
        world.run(rates, seconds)
        if then is not None:
            then("a")
    world.run({}, 3)
    return world


def peak(world: World, region: str) -> float:
    """The highest load of the region in five seconds, relative to its capacity, while "a" was lost."""
    return max(world.load(region, at, at + 5) for at in range(10, 35))


def swing(world: World, region: str) -> float:
    """How much loads of successive seconds vary, relative to independent arrivals."""
    loads = [world.load(region, at, at + 1) for at in range(15, 38)]
    return stdev(loads) / sqrt(mean(loads) / 200)


class LeastReportedLoad:
    """Counter-example: everything goes to the region with the least reported load."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._reported: dict[str, float] = {}

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        if outcome.reported_load is not None and outcome.reported_load.utilization is not None:
            self._reported[state.region] = outcome.reported_load.utilization

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        region = min(available.by_region, key=lambda region: self._reported.get(region, 0.0))
        return self._rng.choice(available.by_region[region])


class NearestRegion:
    """Counter-example: everything goes to the nearest healthy region."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        region = min(available.by_region, key=lambda region: rtt(facts.region or "", region))
        return self._rng.choice(available.by_region[region])


@pytest.mark.second_tier
@pytest.mark.no_cover
def test_simulated_nearest_region_policy_overloads() -> None:
    """The simulation is as dangerous as the module docstring says."""
    world = lose_region_a(NearestRegion, "abc", OWN)
    assert world.load("b", 10, 40) == pytest.approx(1.3, abs=0.05)
    assert world.wait("b", 30, 40) > 1.0


@pytest.mark.no_cover
@pytest.mark.parametrize("reports", [True, pytest.param(False, marks=pytest.mark.second_tier)])
def test_lost_region_does_not_overload_the_nearest(reports: bool) -> None:
    """With and without reported loads: the price alone sees a queue before it is long."""
    world = lose_region_a(aware(), "abc", OWN, reports=reports)
    assert peak(world, "b") < 1.0
    assert world.wait("b", 10, 40) < 0.12
    assert world.load("c", 10, 40) > 0.6
    assert world.share("a", "a", 42, 50) > world.share("a", "a", 2, 10) - 0.1


@pytest.mark.second_tier
@pytest.mark.no_cover
def test_headroom_spreads_load_without_a_wait_price() -> None:
    """With waiting priced at zero only distance counts; then reports alone spread the load."""
    blind = lose_region_a(aware(wait_price=0.0, full=1.0), "aa", {0: 170.0, 1: 170.0})
    assert peak(blind, "b") > 1.3
    assert blind.wait("b", 20, 40) > 1.0
    seeing = lose_region_a(aware(wait_price=0.0), "aa", {0: 170.0, 1: 170.0})
    assert seeing.load("b", 15, 40) < 0.95
    assert seeing.load("c", 15, 40) > 0.7
    assert seeing.wait("b", 15, 40) < blind.wait("b", 15, 40) / 4


@pytest.mark.no_cover
@pytest.mark.parametrize("stale", [pytest.param(0.0, marks=pytest.mark.second_tier), 3.0])
def test_balancers_with_stale_reports_do_not_oscillate(stale: float) -> None:
    """Two that do not know of each other: loads vary from second to second as by chance."""
    world = lose_region_a(aware(), "aa", {0: 170.0, 1: 170.0}, stale=stale)
    assert swing(world, "b") < 1.6
    assert swing(world, "c") < 1.6
    assert max(peak(world, "b"), peak(world, "c")) < 1.0


@pytest.mark.second_tier
@pytest.mark.no_cover
def test_following_the_least_reported_load_oscillates() -> None:
    """Counter-example to the test above."""
    world = lose_region_a(LeastReportedLoad, "aa", {0: 170.0, 1: 170.0}, stale=1.0)
    assert swing(world, "b") > 5.0


@pytest.mark.no_cover
def test_without_reports_headroom_changes_no_pick() -> None:
    """Not one pick: what is not known is not guessed."""
    logs = [
        lose_region_a(aware(full=full), "aa", {0: 80.0, 1: 80.0}, reports=False).log for full in (0.2, 1.0)
    ]
    assert logs[0] == logs[1]


@pytest.mark.no_cover
def test_headroom_is_a_reason() -> None:
    """First picks are by headroom while no report is known; later ones go to the cheapest region with room."""
    world = World(aware(wait_price=0.0), "abc", "a", rtt)
    trace = traced(world.routers[0])
    world.run({0: 300.0}, 10)
    world.lose("a")
    world.run({0: 300.0}, 20)
    assert trace.counts["by-headroom"] > 0
    assert trace.counts["passed-on"] > 0


def room(utilization: float, forwards: int = 0) -> Room:
    """A region that has reported once, with so many requests in flight."""
    found = Room(5.0)
    found.in_flight = forwards
    found.report(utilization, 0.0)
    found.look(0.0, 0.9)
    return found


def test_tight_region_has_hysteresis() -> None:
    """Tight above 0.9, and then until below 0.8."""
    found = room(0.85)
    assert (found.is_tight, found.chance) == (False, 0.0)
    seen = []
    for at, utilization in enumerate((0.95, 0.85, 0.75, 0.85), start=1):
        found.report(utilization, 100.0 * at)
        found.look(100.0 * at, 0.9)
        seen.append(found.is_tight)
    assert seen == [True, True, False, False]


def test_chance_of_leaving_grows_with_the_load() -> None:
    """From 0 at 0.8 to 1 at 1.0, while the region is tight."""
    assert [room(load).chance for load in (0.5, 0.9)] == [0.0, 0.0]
    assert room(0.95).chance == pytest.approx(0.75)
    assert room(1.0).chance == pytest.approx(1.0)
    assert pytest.approx(0.1) == BAND


def test_requests_in_flight_count_before_they_are_reported() -> None:
    """Four times as many in flight as at the report are four times the load, if all are from this process."""
    found = room(0.5, forwards=16)
    assert not found.has_surge
    found.in_flight = 24
    assert not found.has_surge
    found.in_flight = 48
    assert found.has_surge
    assert found.expected == pytest.approx(0.5 * 48 / (16 + 8 + 4))


def test_requests_that_another_policy_has_picked_are_in_flight() -> None:
    headroom = Headroom(0.9, 5.0)
    states = [EndpointState(endpoint) for endpoint in endpoints(1, 1)]
    headroom.look(states, 0.0)
    room = headroom.of(states[0].region)
    states[0].in_flight, states[1].in_flight = 7, 2
    for state in states:
        headroom.settled(state, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1), 0.1)
    assert room.in_flight == 9
    headroom.count(states[1], 3)  # picked here
    assert room.in_flight == 10


def test_reports_expire_after_30_s() -> None:
    found = room(0.99)
    assert found.is_tight
    found.look(30.0, 0.9)
    assert (found.utilization, found.chance) == (None, 0.0)
