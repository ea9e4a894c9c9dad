"""The steelyard policy: least expected cost, part by part."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from policies import Endpoint, EndpointState, Outcome, OutcomeKind, RequestFacts, Router
from policies.contract import ManualClock
from policies.insight.explanation import Trace
from policies.least_cost import EXPLORED, expected_cost
from policies.steelyard import Steelyard

HOME = RequestFacts(region="near")


class Connections:
    """Idle connections, or none; opening one takes 90 ms."""

    connect_time = 0.09

    def __init__(self, has_idle: bool) -> None:
        self.has_idle = has_idle


def router(*members: Endpoint, **options: float) -> tuple[Router, ManualClock]:
    clock = ManualClock()
    policy = Steelyard(Random(1), **options)  # type: ignore[arg-type]
    return Router(members, policy, clock, Random(2)), clock


def endpoint(name: str, region: str = "near", weight: float = 1.0) -> Endpoint:
    return Endpoint(name, f"http://{name}", region, weight)


def measure(r: Router, clock: ManualClock, **seconds: float) -> None:
    """Let each answer thirty requests in so many seconds, one at a time."""
    begun = clock.time
    for name, latency in seconds.items():
        clock.time = begun
        state = r.find(name)
        for _ in range(30):
            clock.time += 0.1
            state.count(outcome(clock.time - latency, clock.time), 0)
    clock.time = begun + 3.0


def outcome(sent_at: float, ended_at: float, kind: OutcomeKind = OutcomeKind.OK) -> Outcome:
    return Outcome(kind, 200, sent_at, ended_at, ended_at)


def connect(r: Router, *warm: str) -> None:
    for state in r.states:
        state.connections = Connections(state.id in warm)


def picks(r: Router, number: int = 40) -> Counter[str]:
    """Where requests go that end at once and leave no sample."""
    found: Counter[str] = Counter()
    for _ in range(number):
        assignment = r.route(HOME)
        found[assignment.state.id] += 1
        r.settle(assignment, outcome(0.0, assignment.routed_at, OutcomeKind.ABANDONED))
    return found


def test_opening_a_connection_is_part_of_the_cost() -> None:
    """60 ms away with an idle connection is cheaper than 20 ms away without one."""
    r, clock = router(endpoint("near"), endpoint("far", "away"))
    measure(r, clock, near=0.02, far=0.06)
    connect(r, "far")
    assert set(picks(r)) == {"far"}
    connect(r, "near", "far")
    assert set(picks(r)) == {"near"}
    connect(r)
    assert set(picks(r)) == {"near"}


def test_no_connection_cost_without_connection_data() -> None:
    r, clock = router(endpoint("near"), endpoint("far", "away"))
    measure(r, clock, near=0.02, far=0.06)
    state = r.find("near")
    assert expected_cost(state, clock.time, 5.0) == pytest.approx(0.02)
    state.connections = Connections(False)
    assert expected_cost(state, clock.time, 5.0) == pytest.approx(0.11)


@pytest.mark.parametrize(("price", "leaves_at"), [(0.0, None), (5.0, 7), (10.0, 3)])
def test_wait_price_decides_when_home_is_left(price: float, leaves_at: int | None) -> None:
    """Home waits 10 ms behind one request; the other region is 80 ms further."""
    r, clock = router(endpoint("near"), endpoint("far", "away"), wait_price=price, explore=0.0)
    measure(r, clock, near=0.02, far=0.13)
    state = r.find("near")
    for _ in range(300):
        clock.time += 0.01
        state.count(outcome(clock.time - 0.03, clock.time), 1)
        r.find("far").count(outcome(clock.time - 0.13, clock.time), 0)
    gone = [r.route(HOME).state.id for _ in range(8)]
    assert (gone.index("far") + 1 if "far" in gone else None) == leaves_at


def test_equal_costs_are_picked_in_turn() -> None:
    """Round-robin is best where all are alike and idle."""
    r, clock = router(*map(endpoint, "abc"))
    measure(r, clock, a=0.0200, b=0.0204, c=0.0207)
    order: list[str] = []
    for _ in range(9):
        clock.time += 0.01
        order += picks(r, 1)
    assert order[:3] == order[3:6] == order[6:]
    assert sorted(order[:3]) == ["a", "b", "c"]


def test_equal_costs_are_picked_by_load_per_weight() -> None:
    r, clock = router(endpoint("light"), endpoint("heavy", weight=3.0), explore=0.0)
    measure(r, clock, light=0.02, heavy=0.02)
    found = Counter(r.route(HOME).state.id for _ in range(8))
    assert found == {"light": 2, "heavy": 6}


def test_clearly_faster_endpoint_is_preferred() -> None:
    """Even with more in flight, while it costs less."""
    r, clock = router(*map(endpoint, "ab"), explore=0.0)
    measure(r, clock, a=0.02, b=0.04)
    assert [r.route(HOME).state.id for _ in range(3)] == ["a", "a", "a"]


def test_failing_endpoint_is_expensive() -> None:
    """However quickly it fails."""
    r, clock = router(*map(endpoint, "ab"), explore=0.0)
    measure(r, clock, a=0.02, b=0.02)
    for _ in range(5):
        r.find("a").count(outcome(clock.time - 0.001, clock.time, OutcomeKind.RESET), 0)
    assert set(picks(r)) == {"b"}


def test_stale_endpoint_is_explored() -> None:
    """At the configured rate, and by one request at a time."""
    r, clock = router(endpoint("near"), endpoint("far", "away"), explore=1.0)
    clock.time = 100.0
    trace = Trace()
    r.explain(trace)
    measure(r, clock, near=0.02)
    while r.route(HOME).state.id != "far":
        pass
    assert trace.last is not None
    assert trace.last.reasons == (EXPLORED,)
    assert "far" not in {r.route(HOME).state.id for _ in range(40)}


def test_large_regions_are_sampled() -> None:
    """Eight of each region are compared, different ones each time."""
    r, clock = router(*(endpoint(f"e{n}") for n in range(30)), explore=0.0)
    measure(r, clock, **{f"e{n}": 0.02 for n in range(30)})
    trace = Trace()
    r.explain(trace)
    assert len(picks(r, 200)) == 30
    assert trace.last is not None
    assert len(trace.last.steps[0].candidates) == 8


def test_requests_of_siblings_do_not_look_like_hanging_ones() -> None:
    """Siblings report a number without ages."""
    state = EndpointState(endpoint("a"))
    for n in range(30):
        state.count(outcome(n * 0.1, n * 0.1 + 0.02), 0)
    before = state.predicted_latency(3.0)
    state.update_elsewhere(1, 3.0)
    assert state.predicted_latency(8.0) < 10 * before


def test_stale_counts_of_siblings_decay_to_the_mean() -> None:
    """A fresh count is used as it is; older than a service time, the mean counts instead."""
    state = EndpointState(endpoint("a"))
    state.update_elsewhere(4, 0.0)
    assert state.in_flight == 4
    for n in range(200):
        state.count(outcome(n * 0.1, n * 0.1 + 0.02), 0)
        state.update_elsewhere(4 + 2 * (n % 2), n * 0.1 + 0.02)
    assert state.in_flight == 5
    state.update_elsewhere(4, 20.0)
    for n in range(1, 200):
        state.update_elsewhere(4 + 4 * (n % 2), 20.0 + n * 1e-4)
        assert state.in_flight == 4 + 4 * (n % 2)
