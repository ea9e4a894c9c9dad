"""Ours: the least expected cost, part by part."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from policies import Endpoint, EndpointState, Outcome, OutcomeKind, RequestFacts, Router
from policies.contract import ManualClock
from policies.insight.explanation import Trace
from policies.steelyard import EXPLORED, Steelyard, expected_cost

HOME = RequestFacts(region="near")


class Warm:
    """Connections that stand, or not; opening one takes 90 ms."""

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
    """Let each of them answer thirty requests in so many seconds, one at a time."""
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
        state.connections = Warm(state.id in warm)


def picks(r: Router, number: int = 40) -> Counter[str]:
    """Where requests go that are answered at once and teach nothing."""
    found: Counter[str] = Counter()
    for _ in range(number):
        assignment = r.route(HOME)
        found[assignment.state.id] += 1
        r.settle(assignment, outcome(0.0, r._now(), OutcomeKind.ABANDONED))
    return found


def test_a_warm_connection_is_worth_what_a_new_one_costs() -> None:
    """60 ms away with a connection is nearer than 20 ms away without one, and no nearer than that with one."""
    r, clock = router(endpoint("near"), endpoint("far", "away"))
    measure(r, clock, near=0.02, far=0.06)
    connect(r, "far")
    assert set(picks(r)) == {"far"}
    connect(r, "near", "far")
    assert set(picks(r)) == {"near"}
    connect(r)
    assert set(picks(r)) == {"near"}


def test_without_an_account_of_connections_none_is_charged() -> None:
    r, clock = router(endpoint("near"), endpoint("far", "away"))
    measure(r, clock, near=0.02, far=0.06)
    state = r.find("near")
    assert expected_cost(state, clock.time, 5.0) == pytest.approx(0.02)
    state.connections = Warm(False)
    assert expected_cost(state, clock.time, 5.0) == pytest.approx(0.11)


@pytest.mark.parametrize(("price", "leaves_at"), [(0.0, None), (5.0, 7), (10.0, 3)])
def test_the_price_of_waiting_decides_when_home_is_left(price: float, leaves_at: int | None) -> None:
    """Home waits 10 ms behind one; away is 80 ms further."""
    r, clock = router(endpoint("near"), endpoint("far", "away"), wait_price=price, explore=0.0)
    measure(r, clock, near=0.02, far=0.13)
    state = r.find("near")
    for _ in range(300):
        clock.time += 0.01
        state.count(outcome(clock.time - 0.03, clock.time), 1)
        r.find("far").count(outcome(clock.time - 0.13, clock.time), 0)
    gone = [r.route(HOME).state.id for _ in range(8)]
    assert (gone.index("far") + 1 if "far" in gone else None) == leaves_at


def test_among_equals_it_is_turns() -> None:
    """Nothing beats that where all are alike and nobody is busy."""
    r, clock = router(*map(endpoint, "abc"))
    measure(r, clock, a=0.0200, b=0.0204, c=0.0207)
    order: list[str] = []
    for _ in range(9):
        clock.time += 0.01
        order += picks(r, 1)
    assert order[:3] == order[3:6] == order[6:]
    assert sorted(order[:3]) == ["a", "b", "c"]


def test_among_equals_the_less_loaded_by_weight() -> None:
    r, clock = router(endpoint("light"), endpoint("heavy", weight=3.0), explore=0.0)
    measure(r, clock, light=0.02, heavy=0.02)
    found = Counter(r.route(HOME).state.id for _ in range(8))
    assert found == {"light": 2, "heavy": 6}


def test_who_is_clearly_quicker_is_no_equal() -> None:
    """Even with more in flight, as long as it costs less."""
    r, clock = router(*map(endpoint, "ab"), explore=0.0)
    measure(r, clock, a=0.02, b=0.04)
    assert [r.route(HOME).state.id for _ in range(3)] == ["a", "a", "a"]


def test_a_failing_one_is_dear() -> None:
    """However quick its failures are."""
    r, clock = router(*map(endpoint, "ab"), explore=0.0)
    measure(r, clock, a=0.02, b=0.02)
    for _ in range(5):
        r.find("a").count(outcome(clock.time - 0.001, clock.time, OutcomeKind.RESET), 0)
    assert set(picks(r)) == {"b"}


def test_who_is_not_known_any_more_is_looked_at() -> None:
    """As often as is asked for, and only while nothing is out there."""
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


def test_many_are_sampled() -> None:
    """Eight of each region are looked at, others each time."""
    r, clock = router(*(endpoint(f"e{n}") for n in range(30)), explore=0.0)
    measure(r, clock, **{f"e{n}": 0.02 for n in range(30)})
    trace = Trace()
    r.explain(trace)
    assert len(picks(r, 200)) == 30
    assert trace.last is not None
    assert len(trace.last.steps[0].candidates) == 8


def test_it_forgets_those_who_are_gone() -> None:
    members = [*map(endpoint, "abc")]
    r, _ = router(*members)
    policy = r.policy
    assert isinstance(policy, Steelyard)
    picks(r)
    assert set(policy._picked_at) == {"a", "b", "c"}
    r.replace(members[:2])
    assert set(policy._picked_at) == {"a", "b"}


def test_what_others_have_out_says_nothing_of_an_age() -> None:
    """Nobody seems to hang because others have requests there of which we hear the number only."""
    state = EndpointState(endpoint("a"))
    for n in range(30):
        state.count(outcome(n * 0.1, n * 0.1 + 0.02), 0)
    before = state.predicted_latency(3.0)
    state.update_elsewhere(1, 3.0)
    assert state.predicted_latency(8.0) < 10 * before


def test_old_news_of_others_is_believed_by_its_age() -> None:
    """Fresh, it is what it is; older than a service, the usual number counts instead."""
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
