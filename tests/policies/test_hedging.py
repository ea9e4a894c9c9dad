"""Hedging: when a request is late, how many are hedged, when none is, and where the second attempt goes."""

from __future__ import annotations

from math import log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.endpoint.available import AvailableByRegion
from policies.endpoint.state import EndpointState
from policies.facts import Endpoint, Outcome, OutcomeKind
from policies.overload.hedging import BURST, START, Hedging


def states(**regions: int) -> list[EndpointState]:
    """So many endpoints in each region: emea0, emea1, us0, …"""
    names = [(f"{region}{i}", region) for region, count in regions.items() for i in range(count)]
    return [
        EndpointState(Endpoint(name, f"http://{name}", region), at) for at, (name, region) in enumerate(names)
    ]


def serve(hedging: Hedging, state: EndpointState, latency: float, now: float) -> bool:
    """Record one request; return whether it was late."""
    is_late = latency > hedging.wait(state)
    hedging.record(state, None if is_late else latency, now)
    return is_late


@pytest.mark.parametrize("quantile", [0.9, 0.95, 0.99])
def test_wait_converges_to_the_quantile(quantile: float) -> None:
    """Exponential service times, from a far larger initial value, within a few hundred requests."""
    hedging, rng = Hedging(quantile, least=0.001), Random(1)
    (state,) = states(emea=1)
    for n in range(3000 if quantile < 0.99 else 12_000):
        serve(hedging, state, rng.expovariate(50.0), n / 100)
    waits, late, count = [], 0, 20_000
    for n in range(count):
        late += serve(hedging, state, rng.expovariate(50.0), 200 + n / 100)
        waits.append(hedging.usual["emea"])
    assert late / count == pytest.approx(1 - quantile, rel=0.15)
    assert sum(waits) / count == pytest.approx(-log(1 - quantile) / 50, rel=0.25)


def test_hanging_endpoint_does_not_change_the_wait() -> None:
    """A third of the region's requests are never answered."""
    hedging, rng = Hedging(), Random(1)
    members = states(emea=3)
    for n in range(6000):
        serve(hedging, members[n % 3], rng.uniform(0.02, 0.04), n / 300)
    before = hedging.usual["emea"]
    for n in range(3000):
        state = members[n % 3]
        serve(hedging, state, 1e9 if state is members[0] else rng.uniform(0.02, 0.04), 20 + n / 300)
    assert hedging.usual["emea"] == pytest.approx(before, rel=0.3)
    assert not hedging.is_slow(30.0)


def test_wait_follows_a_region_that_slows_down() -> None:
    """Five times slower for good: after 120 requests few are late."""
    hedging, rng = Hedging(), Random(1)
    members = states(emea=3)
    for n in range(6000):
        serve(hedging, members[n % 3], rng.uniform(0.02, 0.04), n / 300)
    late = [serve(hedging, members[n % 3], rng.uniform(0.1, 0.2), 20 + n / 300) for n in range(600)]
    assert all(late[:10])
    assert sum(late[120:]) < 60


def test_no_hedging_while_most_requests_are_late() -> None:
    """Another endpoint would be as slow, and the load is high enough."""
    hedging = Hedging()
    members = states(emea=2)
    for n in range(1000):
        serve(hedging, members[n % 2], 0.02, n / 100)
    for n in range(80):
        hedging.record(members[n % 2], None, 10.0 + n / 100)
    assert hedging.is_slow(10.8)
    assert not hedging.take(10.8)
    assert (hedging.withheld, hedging.denied) == (1, 0)
    for n in range(100):
        serve(hedging, members[n % 2], 0.02, 11.0 + n / 100)
    assert hedging.take(12.0)


def test_single_late_request_may_be_hedged() -> None:
    """A region with hardly any requests is not slow because of one."""
    hedging = Hedging()
    (state,) = states(emea=1)
    hedging.record(state, None, 1000.0)
    assert hedging.take(1000.0)


@given(share=st.sampled_from([0.01, 0.05, 0.5]), events=st.lists(st.booleans(), max_size=600))
def test_hedges_stay_within_their_share(share: float, events: list[bool]) -> None:
    """Over any stretch of requests: the share of them, and the burst."""
    hedging, (state,) = Hedging(share=share), states(emea=1)
    requests: list[int] = []
    hedged: list[int] = []
    for event in events:
        if event:
            hedging.wait(state)
            requests.append(1)
            hedged.append(0)
        elif hedging.take(0.0):
            requests.append(0)
            hedged.append(1)
    for begin in range(0, len(requests), 7):
        assert sum(hedged[begin:]) <= share * sum(requests[begin:]) + BURST + 1e-9
    assert sum(hedged) <= share * sum(requests) + 1


def awaiting(state: EndpointState, latency: float, requests: int) -> EndpointState:
    """The endpoint after ten answers of `latency` seconds until 10.0, with so many requests in flight since then."""
    for _ in range(10):
        state.await_one(1, 10.0 - latency)
        state.await_one(-1, 10.0)
        state.count(Outcome(OutcomeKind.OK, 200, 10.0 - latency, 10.0, 10.0), 0, 0)
    for _ in range(requests):
        state.await_one(1, 10.0)
    return state


def test_answers_that_an_endpoint_owes() -> None:
    """By Little's law two requests in flight at 20 ms are answered at 100 per second, none before 20 ms."""
    (state,) = states(emea=1)
    assert state.overdue(10.0) == 0.0
    awaiting(state, 0.02, 2)
    assert state.overdue(10.02) == 0.0
    assert state.overdue(10.07) == pytest.approx(5.0)
    state.await_one(-1, 10.06)
    assert state.overdue(10.07) == 0.0
    state.await_one(-1, 10.1)
    assert state.overdue(20.0) == 0.0


def test_silent_endpoint() -> None:
    """One of three is silent; where most are, none is: then the balancer or all workers are slow."""
    first, second, third = members = states(emea=3)
    for state in members:
        awaiting(state, 0.02, 2)
    assert Hedging().silent(members, 10.071) == []
    for state in (second, third):
        state.await_one(-1, 10.05)
    assert Hedging().silent(members, 10.071) == [first]
    assert Hedging().silent([first], 10.071) == [first]


def test_wait_stays_within_its_bounds() -> None:
    """Without measurements it is one second."""
    hedging = Hedging(least=0.05, most=2.0)
    quick, slow = states(emea=1, us=1)
    assert hedging.wait(quick) == START
    for n in range(2000):
        hedging.record(quick, 0.001, n)
        hedging.record(slow, None, n)
    assert hedging.usual == {"emea": 0.05, "us": 2.0}


def test_endpoint_without_requests_is_forgotten() -> None:
    """Its latency of an hour ago does not count."""
    hedging = Hedging()
    gone, here = states(emea=2)
    for n in range(2000):
        hedging.record(gone, 0.01, n / 100)
        hedging.record(here, 0.5, n / 100)
    assert hedging.usual["emea"] == pytest.approx(0.01, rel=0.2)
    for n in range(100):
        hedging.record(here, 0.5, 3600 + n / 100)
    assert hedging.usual["emea"] > 0.4


# --- who is requests


def learned(usual: dict[str, float], members: list[EndpointState]) -> Hedging:
    """Hedging with these usual latencies by region."""
    hedging = Hedging()
    for state in members:
        for n in range(2000):
            hedging.record(
                state, None if usual[state.region] > hedging.usual.get(state.region, START) else 0.0, n
            )
    return hedging


def ids(chosen: list[EndpointState]) -> set[str]:
    return {state.id for state in chosen}


@pytest.mark.parametrize(
    ("sizes", "others"),
    [
        (
            {"a": 2, "b": 2, "far": 2},
            {"b0", "b1"},
        ),  # another near region: what slows one endpoint often slows all
        ({"a": 3, "far": 2}, {"a1", "a2"}),  # a response from far would be too late
        ({"a": 1, "far": 2}, {"far0", "far1"}),  # if the region has no other
        ({"a": 1}, set()),
    ],
)
def test_where_the_second_attempt_goes(sizes: dict[str, int], others: set[str]) -> None:
    members = states(**sizes)
    hedging = learned({"a": 0.03, "b": 0.04, "far": 0.3}, members)
    assert ids(hedging.others(members[0], AvailableByRegion(members))) == others
    assert hedging.others(members[0], AvailableByRegion()) == []


def test_second_attempt_avoids_endpoints_with_more_in_flight_than_usual() -> None:
    """Two are usual; an endpoint with two may be chosen, one with four not."""
    members = states(a=4)
    hedging = learned({"a": 0.03}, members)
    members[0].in_flight = 3  # as requests usually find it: two, and then there are three
    for _ in range(1000):
        hedging.wait(members[0])
    for state, in_flight in zip(members[1:], (0, 2, 4), strict=True):
        state.in_flight = in_flight
    assert ids(hedging.others(members[0], AvailableByRegion(members))) == {"a1", "a2"}
