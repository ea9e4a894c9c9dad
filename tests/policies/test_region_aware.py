"""Region-aware policy in the world of the experiment: saturated near workers, idle distant ones, unknown capacity.

Three regions of two workers, 350, 450 and 580 ms away, one slot each with a queue, 19–21 ms per request; clients in
emea.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

import pytest

from policies import Endpoint, EndpointState, OutcomeKind, RequestFacts, Router, make
from policies.contract import ManualClock, Trial

ROUND_TRIP = {"emea": 0.350, "us": 0.450, "asia": 0.580}
MEMBERS = [Endpoint(f"{region}-{i}", "http://x", region) for i in range(2) for region in ROUND_TRIP]


class Fleet:
    """Workers as queues; `slowness` by region multiplies service times, `dead` regions refuse after a round trip."""

    def __init__(self) -> None:
        self._rng = Random(4)
        self._free_at: defaultdict[str, float] = defaultdict(float)
        self.slowness = dict.fromkeys(ROUND_TRIP, 1.0)
        self.dead: set[str] = set()

    def __call__(self, state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        one_way = (ROUND_TRIP[state.region] + self._rng.uniform(0, 0.004)) / 2
        if state.region in self.dead:
            return 2 * one_way, OutcomeKind.REFUSED
        starts_at = max(now + one_way, self._free_at[state.id])
        ends_at = starts_at + self._rng.uniform(0.019, 0.021) * self.slowness[state.region]
        self._free_at[state.id] = ends_at
        return ends_at + one_way - now, OutcomeKind.OK


def trial(name: str, **options: Any) -> tuple[Trial, Fleet]:
    """A policy before the fleet, with requests from emea."""
    fleet = Fleet()
    t = Trial(lambda rng: make(name, options, rng), MEMBERS, fleet)
    t.facts = RequestFacts(region="emea")
    return t, fleet


def shares(t: Trial, since: float) -> dict[str, float]:
    by_region: Counter[str] = Counter()
    for endpoint, n in t.picked(since).items():
        by_region[endpoint.partition("-")[0]] += n
    return {region: by_region[region] / by_region.total() for region in ROUND_TRIP}


def settled_mean(name: str, **options: Any) -> float:
    """Mean latency in seconds with 100 outstanding, after ten seconds of settling."""
    t, _ = trial(name, **options)
    t.closed_loop(100, 40)
    return t.mean_latency(since=10)


@pytest.mark.no_cover
def test_mean_latency_beats_round_robin_at_high_load() -> None:
    """100 outstanding: 3 % or more ahead of round-robin, which is ahead of random; one region alone is far behind."""
    aware, blind = settled_mean("region-aware"), settled_mean("round-robin")
    assert aware < 0.97 * blind
    assert blind < settled_mean("random")
    assert settled_mean("single-region", region="emea") > 1.5 * blind


def test_home_region_is_nearly_saturated_without_a_long_queue() -> None:
    """emea has 85–100 of its capacity of 100 per second, with a wait of at most 60 ms."""
    t, _ = trial("region-aware")
    t.closed_loop(100, 40)
    home = [latency for at, endpoint, latency in t.log if at >= 10 and endpoint.startswith("emea")]
    assert 85 <= len(home) / 30 <= 100
    assert sum(home) / len(home) < 0.370 + 0.060


@pytest.mark.second_tier
def test_wait_price_of_one_loses_to_round_robin() -> None:
    """Wardrop's equilibrium: why `wait_price` is not 1."""
    assert settled_mean("region-aware", wait_price=1.0) > settled_mean("round-robin")


@pytest.mark.parametrize(("rate", "home"), [(5, 0.9), (30, 0.95), (60, 0.95)])
def test_low_load_stays_in_the_home_region(rate: float, home: float) -> None:
    """Apart from exploration."""
    t, _ = trial("region-aware")
    t.open_loop(rate, 60)
    assert shares(t, since=15)["emea"] >= home


@pytest.mark.no_cover
@pytest.mark.parametrize("rate", [*(pytest.param(n, marks=pytest.mark.second_tier) for n in (100, 180)), 240])
def test_open_loop_latency_is_no_worse_than_round_robin(rate: float) -> None:
    """At any offered rate, and far better while the home region has room."""
    means = []
    for name in ("region-aware", "round-robin"):
        t, _ = trial(name)
        t.open_loop(rate, 60)
        means.append(t.mean_latency(since=15))
    assert means[0] < means[1] * (0.93 if rate < 200 else 1.01)


def test_sudden_burst_spills_over_at_once() -> None:
    """From 10 to 100 outstanding at once: spill-over does not wait for the first slow response."""
    t, _ = trial("region-aware")
    t.closed_loop(10, 5)
    before = t.clock.time
    for _ in range(90):
        t.send()
    burst = Counter(endpoint.partition("-")[0] for at, endpoint, _ in t.log if at == before)
    assert burst["emea"] < 60


@pytest.mark.parametrize(
    ("slowness", "left_at", "left", "back"), [(None, 23, 0.03, 0.85), (10.0, 30, 0.1, 0.7)]
)
def test_home_region_in_trouble_is_left_and_returned_to(
    slowness: float | None, left_at: float, left: float, back: float
) -> None:
    """Within seconds both ways, without active checks; where it is ten times slower, only the price changes."""
    t, fleet = trial("region-aware")
    t.open_loop(80, 20)
    if slowness is None:
        fleet.dead = {"emea"}
    else:
        fleet.slowness["emea"] = slowness
    t.open_loop(80, 30)
    assert shares(t, since=left_at)["emea"] < left
    fleet.dead, fleet.slowness["emea"] = set(), 1.0
    t.open_loop(80, 50)
    assert shares(t, since=80)["emea"] > back


def test_cheapest_region_serves_requests_without_an_available_home() -> None:
    """The home region is full, unknown or not given."""
    members = [Endpoint("e", "http://x", "emea", max_in_flight=1), Endpoint("u", "http://x", "us")]
    r = Router(members, make("region-aware", {}, Random(1)), ManualClock(), Random(1))
    r.find("u").latency.record(0.4, 0, 0.0)
    r.find("e").latency.record(0.3, 0, 0.0)
    assert [r.route(RequestFacts(region="emea")).endpoint.id for _ in range(2)] == ["e", "u"]
    assert r.route(RequestFacts(region="mars")).endpoint.id == "u"
    r.set_healthy("e", False)
    assert r.route(RequestFacts(region=None)).endpoint.id == "u"


def test_margin_keeps_requests_home() -> None:
    """A region that is faster by less than the margin is not chosen."""
    for margin, region in ((0.2, "emea"), (0.05, "us")):
        r = Router(MEMBERS[:2], make("region-aware", {"margin": margin}, Random(1)), ManualClock(), Random(1))
        r.find("emea-0").latency.record(0.3, 0, 0.0)
        r.find("us-0").latency.record(0.2, 0, 0.0)
        assert r.route(RequestFacts(region="emea")).endpoint.region == region
