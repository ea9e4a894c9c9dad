"""A region that is lost does not take the nearest with it, and balancers that see old news do not swing.

The sum is 340 requests a second from "a" alone, or 360 from three regions, before regions of 200 each. With "a" lost,
all of its load beside what "b" has itself would be 1.3 times what "b" can take; "b" and "c" together are loaded to
0.9 at most.
"""

from __future__ import annotations

from math import sqrt
from random import Random
from statistics import mean, stdev
from typing import Any

import pytest

from policies import Available, EndpointState, Outcome, RequestFacts, Trace, make
from policies.headroom import BAND, Room
from policies.policy import PolicyMaker
from tests.policies.worlds import World

AWAY = {"ab": 0.1, "ac": 0.2, "bc": 0.2}
OWN = {0: 160.0, 1: 100.0, 2: 60.0}


def rtt(home: str, region: str) -> float:
    return 0.002 if home == region else AWAY["".join(sorted(home + region))]


def aware(**options: Any) -> PolicyMaker:
    return lambda rng: make("region-aware", options, rng)


def lost(make_policy: PolicyMaker, homes: str, rates: dict[int, float], **options: Any) -> World:
    """Ten seconds, then thirty without "a", then ten with it again."""
    world = World(make_policy, "abc", homes, rtt, **options)
    for seconds, then in ((10, world.lose), (30, world.restore), (10, None)):
        world.run(rates, seconds)
        if then is not None:
            then("a")
    world.run({}, 3)
    return world


def peak(world: World, region: str) -> float:
    """The most that the region was sent in five seconds, over what it can take, while "a" was lost."""
    return max(world.load(region, at, at + 5) for at in range(10, 35))


def swing(world: World, region: str) -> float:
    """How much the load of a second differs from the next, over what independent arrivals would."""
    loads = [world.load(region, at, at + 1) for at in range(15, 38)]
    return stdev(loads) / sqrt(mean(loads) / 200)


class Herd:
    """What not to do: whoever says that it is least busy gets everything."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._said: dict[str, float] = {}

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        if outcome.reported_load is not None and outcome.reported_load.utilization is not None:
            self._said[state.region] = outcome.reported_load.utilization

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        region = min(available.by_region, key=lambda region: self._said.get(region, 0.0))
        return self._rng.choice(available.by_region[region])


class Nearest:
    """What not to do either: whoever is nearest gets everything, while it is well."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        region = min(available.by_region, key=lambda region: rtt(facts.region or "", region))
        return self._rng.choice(available.by_region[region])


@pytest.mark.no_cover
def test_the_nearest_would_be_overloaded() -> None:
    """The world is as dangerous as the head of this file says."""
    world = lost(Nearest, "abc", OWN)
    assert world.load("b", 10, 40) == pytest.approx(1.3, abs=0.05)
    assert world.wait("b", 30, 40) > 1.0


@pytest.mark.no_cover
@pytest.mark.parametrize("tells", [True, False])
def test_a_lost_region_does_not_take_the_nearest_with_it(tells: bool) -> None:
    """Whether workers say how busy they are or not: the price alone sees a queue before it is long."""
    world = lost(aware(), "abc", OWN, tells=tells)
    assert peak(world, "b") < 1.0
    assert world.wait("b", 10, 40) < 0.12
    assert world.load("c", 10, 40) > 0.6
    assert world.share("a", "a", 42, 50) > world.share("a", "a", 2, 10) - 0.1


@pytest.mark.no_cover
def test_headroom_holds_where_the_price_is_blind() -> None:
    """With waiting priced at nothing, or too late, distance is all that counts: then reports alone spread the load."""
    blind = lost(aware(wait_price=0.0, full=1.0), "aa", {0: 170.0, 1: 170.0})
    assert peak(blind, "b") > 1.3
    assert blind.wait("b", 20, 40) > 1.0
    seeing = lost(aware(wait_price=0.0), "aa", {0: 170.0, 1: 170.0})
    assert seeing.load("b", 15, 40) < 0.95
    assert seeing.load("c", 15, 40) > 0.7
    assert seeing.wait("b", 15, 40) < blind.wait("b", 15, 40) / 4


@pytest.mark.no_cover
@pytest.mark.parametrize("stale", [0.0, 3.0])
def test_balancers_with_stale_views_do_not_swing(stale: float) -> None:
    """Two of them, neither of which knows of the other: loads differ from second to second as chance has it."""
    world = lost(aware(), "aa", {0: 170.0, 1: 170.0}, stale=stale)
    assert swing(world, "b") < 1.6
    assert swing(world, "c") < 1.6
    assert max(peak(world, "b"), peak(world, "c")) < 1.0


@pytest.mark.no_cover
def test_following_the_least_busy_swings() -> None:
    """As summaries do by which everybody runs to the same place."""
    world = lost(Herd, "aa", {0: 170.0, 1: 170.0}, stale=1.0)
    assert swing(world, "b") > 5.0


@pytest.mark.no_cover
def test_where_nobody_reports_nothing_changes() -> None:
    """Not one pick: what is not known is not guessed."""
    logs = [lost(aware(full=full), "aa", {0: 80.0, 1: 80.0}, tells=False).log for full in (0.2, 1.0)]
    assert logs[0] == logs[1]


@pytest.mark.no_cover
def test_it_says_when_room_decided() -> None:
    """First all go by headroom, for nobody knows how it will be; then the cheapest that has room."""
    world = World(aware(wait_price=0.0), "abc", "a", rtt)
    trace = Trace()
    world.routers[0].explain(trace)
    world.run({0: 300.0}, 10)
    world.lose("a")
    world.run({0: 300.0}, 20)
    assert trace.counts["by-headroom"] > 0
    assert trace.counts["passed-on"] > 0


def room(utilization: float, forwards: int = 0, full: float = 0.9) -> Room:
    """One that has reported once, with so many in flight."""
    found = Room(5.0)
    found.in_flight = forwards
    found.report(utilization, 0.0)
    found.look(0.0, full)
    return found


def test_a_tight_region_stays_tight_until_it_has_clearly_more_room() -> None:
    """Above 0.9, and then until it is below 0.8."""
    found = room(0.85)
    assert (found.is_tight, found.chance) == (False, 0.0)
    seen = []
    for at, utilization in enumerate((0.95, 0.85, 0.75, 0.85), start=1):
        found.report(utilization, 100.0 * at)
        found.look(100.0 * at, 0.9)
        seen.append(found.is_tight)
    assert seen == [True, True, False, False]


def test_the_chance_grows_with_the_load() -> None:
    """From nothing at 0.8 to all at 1, as long as it is tight."""
    assert [room(load).chance for load in (0.5, 0.9)] == [0.0, 0.0]
    assert room(0.95).chance == pytest.approx(0.75)
    assert room(1.0).chance == pytest.approx(1.0)
    assert pytest.approx(0.1) == BAND


def test_what_is_on_its_way_counts_before_it_is_reported() -> None:
    """Four times as many in flight as the report speaks for will be four times the load, if it is all ours."""
    found = room(0.5, forwards=16)
    assert not found.has_surge
    found.in_flight = 24
    assert not found.has_surge
    found.in_flight = 48
    assert found.has_surge
    assert found.expected == pytest.approx(0.5 * 48 / (16 + 8 + 4))


def test_old_reports_are_forgotten() -> None:
    """What nobody has said for half a minute is not known."""
    found = room(0.99)
    assert found.is_tight
    found.look(30.0, 0.9)
    assert (found.utilization, found.chance) == (None, 0.0)
