"""Hedging: what counts as late, how many may be hedged, when nobody is, and who is asked instead."""

from __future__ import annotations

from math import log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Endpoint
from policies.overload.hedging import BURST, START, Hedging


def states(**regions: int) -> list[EndpointState]:
    """So many endpoints in each region: emea0, emea1, us0, …"""
    names = [(f"{region}{i}", region) for region, count in regions.items() for i in range(count)]
    return [
        EndpointState(Endpoint(name, f"http://{name}", region), at) for at, (name, region) in enumerate(names)
    ]


def serve(hedging: Hedging, state: EndpointState, latency: float, now: float) -> bool:
    """One request; returns whether it was late."""
    is_late = latency > hedging.wait(state.region)
    hedging.record(state, None if is_late else latency, now)
    return is_late


@pytest.mark.parametrize("quantile", [0.9, 0.95, 0.99])
def test_the_wait_is_the_quantile(quantile: float) -> None:
    """Of an exponential service, from far above, within a few hundred requests; and so many are late."""
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


def test_one_that_hangs_is_not_what_is_usual() -> None:
    """A third of the region's requests never comes back: the wait stays what the others need."""
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


def test_a_region_that_slows_is_late_no_more_after_some_twenty_requests_each() -> None:
    """Five times slower for good: what is usual follows."""
    hedging, rng = Hedging(), Random(1)
    members = states(emea=3)
    for n in range(6000):
        serve(hedging, members[n % 3], rng.uniform(0.02, 0.04), n / 300)
    late = [serve(hedging, members[n % 3], rng.uniform(0.1, 0.2), 20 + n / 300) for n in range(600)]
    assert all(late[:10])
    assert sum(late[120:]) < 60


def test_nobody_is_hedged_while_all_are_slow() -> None:
    """More than half are late: another endpoint would be as slow, and they have enough to do."""
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


def test_one_late_request_is_not_all() -> None:
    """A service that is hardly asked may still be hedged."""
    hedging = Hedging()
    (state,) = states(emea=1)
    hedging.record(state, None, 1000.0)
    assert hedging.take(1000.0)


@given(
    share=st.sampled_from([0.01, 0.05, 0.5]),
    events=st.lists(st.booleans(), max_size=600),
)
def test_no_more_than_a_share_is_hedged(share: float, events: list[bool]) -> None:
    """Over any stretch of requests: the share of them, and what may be saved up."""
    hedging = Hedging(share=share)
    asked: list[int] = []
    hedged: list[int] = []
    for event in events:
        if event:
            hedging.wait("emea")
            asked.append(1)
            hedged.append(0)
        elif hedging.take(0.0):
            asked.append(0)
            hedged.append(1)
    for begin in range(0, len(asked), 7):
        assert sum(hedged[begin:]) <= share * sum(asked[begin:]) + BURST + 1e-9
    assert sum(hedged) <= share * sum(asked) + 1


def test_bounds_of_the_wait() -> None:
    """However quick or slow the answers are; unmeasured, a second."""
    hedging = Hedging(least=0.05, most=2.0)
    quick, slow = states(emea=1, us=1)
    assert hedging.wait("emea") == START
    for n in range(2000):
        hedging.record(quick, 0.001, n)
        hedging.record(slow, None, n)
    assert hedging.usual == {"emea": 0.05, "us": 2.0}


def test_an_endpoint_that_is_asked_no_more_is_forgotten() -> None:
    """What it was like an hour ago is not what is usual."""
    hedging = Hedging()
    gone, here = states(emea=2)
    for n in range(2000):
        hedging.record(gone, 0.01, n / 100)
        hedging.record(here, 0.5, n / 100)
    assert hedging.usual["emea"] == pytest.approx(0.01, rel=0.2)
    for n in range(100):
        hedging.record(here, 0.5, 3600 + n / 100)
    assert hedging.usual["emea"] > 0.4


# --- who is asked


def learned(usual: dict[str, float], members: list[EndpointState]) -> Hedging:
    """Hedging that knows these regions."""
    hedging = Hedging()
    for state in members:
        for n in range(2000):
            hedging.record(
                state, None if usual[state.region] > hedging.usual.get(state.region, START) else 0.0, n
            )
    return hedging


def ids(chosen: list[EndpointState]) -> set[str]:
    return {state.id for state in chosen}


def test_another_region_that_is_as_near() -> None:
    """What slows an endpoint often slows its neighbours."""
    members = states(a=2, b=2, far=2)
    hedging = learned({"a": 0.03, "b": 0.04, "far": 0.3}, members)
    assert ids(hedging.others(members[0], Available(members))) == {"b0", "b1"}


def test_a_neighbour_where_the_others_are_far() -> None:
    """An answer from there would come too late."""
    members = states(a=3, far=2)
    hedging = learned({"a": 0.03, "far": 0.3}, members)
    assert ids(hedging.others(members[0], Available(members))) == {"a1", "a2"}


def test_a_far_one_where_there_is_no_neighbour() -> None:
    """Better than nobody; where there is nobody, nobody."""
    members = states(a=1, far=2)
    hedging = learned({"a": 0.03, "far": 0.3}, members)
    assert ids(hedging.others(members[0], Available(members))) == {"far0", "far1"}
    assert hedging.others(members[0], Available(members[:1])) == []
    assert hedging.others(members[0], Available()) == []
