"""The steelyard policy: least expected cost, part by part."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from math import comb
from random import Random
from types import FrameType

import pytest

from benchmarks.harness.open_load import without_collections
from policies import Endpoint, EndpointState, Outcome, OutcomeKind, RequestFacts, Router
from policies.contract import ManualClock
from policies.endpoint.latency_prior import GUESS
from policies.routing.assignment import Assignment
from policies.steelyard.costs import expected_wait
from policies.steelyard.estimate import Estimate
from policies.steelyard.least_cost import EXPLORED
from policies.steelyard.policy import Steelyard
from policies.steelyard.service_time import CONCURRENCIES, EndpointService, RegionService, Shape, Sums
from tests.support.steelyard_routers import (
    HOME,
    Connections,
    answer,
    costs_by_name,
    endpoint,
    measure,
    outcome,
    picks,
    router,
)
from tests.support.traces import last, traced


def costs(r: Router) -> tuple[float, ...]:
    """The costs that the policy compares for a request, which ends at once."""
    return tuple(costs_by_name(r).values())


def connect(r: Router, *warm: str) -> None:
    for state in r.states:
        state.connections = Connections(state.id in warm)


def test_opening_a_connection_is_part_of_the_cost() -> None:
    """20 ms more with an idle connection is cheaper than without one."""
    r, clock = router(endpoint("near"), endpoint("far", "away"), explore=0.0)
    measure(r, clock, near=0.02, far=0.04)
    connect(r, "far")
    assert set(picks(r)) == {"far"}
    connect(r, "near", "far")
    assert set(picks(r)) == {"near"}
    connect(r)
    assert set(picks(r)) == {"near"}


def test_weight_that_is_next_to_nothing_beside_another_gets_no_request() -> None:
    """Its room is 0 as a number."""
    members = [
        Endpoint(name, f"http://{name}", "home", weight) for name, weight in (("a", 5e-324), ("b", 1e6))
    ]
    r = Router(members, Steelyard(Random(1)), ManualClock(), Random(2))
    assert Counter(r.route(RequestFacts(region="home")).endpoint.id for _ in range(8))["b"] >= 7
    assert (r.fallback_picks, r.last_fault) == (0, None)


def test_burst_before_the_first_answer_stays_at_home_only_as_far_as_home_may_serve_it() -> None:
    """A hundred at once: those that would wait at home for longer than the way to another region go there."""
    r, _ = router(*[endpoint(f"{region}-{i}", region) for region in ("near", "away") for i in range(2)])
    regions = [r.route(HOME).state.region for _ in range(100)]
    assert regions[:40] == ["near"] * 40
    assert Counter(regions[40:])["away"] > 25


def test_burst_before_the_first_answer_follows_the_weights() -> None:
    """An endpoint of a thirtieth of the weight is assumed to serve as much less."""
    r, _ = router(endpoint("near", "near", 1.0), endpoint("away", "away", 30.0))
    regions = Counter(r.route(HOME).state.region for _ in range(100))
    assert 2 <= regions["near"] < 20


def test_requests_of_others_do_not_age_before_the_first_answer() -> None:
    """Other balancers' requests at a region that this one never tried: since when they wait is unknown."""
    r, clock = router(endpoint("near"), endpoint("far", "away"))
    clock.time = 60.0
    before = costs(r)[1]
    r.states[1].update_elsewhere(3, clock.time)
    assert costs(r)[1] == pytest.approx(before)


def test_far_endpoint_is_priced_by_its_handshake_before_the_first_answer() -> None:
    """Home takes 80 ms: an endpoint 10 ms away is worth a try until it is silent, one at an unknown distance is not."""
    r, clock = router(endpoint("near"), endpoint("close", "a"), endpoint("unknown", "b"), explore=0.0)
    measure(r, clock, near=0.08)
    r.find("close").connections = Connections(True, 0.01)
    assert GUESS > 0.01
    assert [r.route(HOME).state.id for _ in range(2)] == ["close", "close"]
    clock.time += 0.1
    assert r.route(HOME).state.id == "near"


@pytest.mark.parametrize(("load", "leaves_at"), [(0.0, 7), (0.5, 4), (2 / 3, 3), (0.9, 2)])
def test_load_decides_when_home_is_left(load: float, leaves_at: int) -> None:
    """Home serves one at a time in 20 ms; the other region is 100 ms away. A wait costs 1 / (1 − load) times."""
    r, clock = router(endpoint("near"), endpoint("far", "away"), load=load, explore=0.0)
    r.find("far").connections = Connections(True, 0.1)
    for _ in range(60):  # two at a time, the second waits for the first
        both = [r.route(RequestFacts(region="near", tried=frozenset({"far"}))) for _ in range(2)]
        begun = clock.time
        for assignment in both:
            clock.time += 0.02
            r.settle(assignment, outcome(begun, clock.time))
    measure(r, clock, far=0.12)
    for _ in range(4):
        answer(r, clock, "near", 0.02)
    gone = [r.route(HOME).state.id for _ in range(8)]
    assert gone.index("far") + 1 == leaves_at


@pytest.mark.parametrize("distance", [0.0, 0.002, 0.02, 0.2])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_expected_wait_is_that_of_a_binomial_number_at_the_endpoint(
    distance: float, concurrency: int
) -> None:
    """Within a sixth of a service time, as long as the endpoint is not saturated."""
    share = 0.02 / (0.02 + distance)
    for in_flight in range(1, int(concurrency / share) + 1):
        exact = sum(
            comb(in_flight, k) * share**k * (1 - share) ** (in_flight - k) * max(0, k + 1 - concurrency)
            for k in range(in_flight + 1)
        )
        wait = expected_wait(in_flight, 0.02, distance, float(concurrency))
        assert wait == pytest.approx(exact * 0.02 / concurrency, abs=0.02 / 6)


def test_expected_wait_of_a_saturated_endpoint_is_what_is_not_on_its_way() -> None:
    """Of 100 requests in flight, 20 are on their way at any time if one is served each 10 ms and the way takes 200."""
    assert expected_wait(100, 0.02, 0.2, 2.0) == pytest.approx((100 - 20 + 1 - 2) * 0.01, rel=0.001)
    assert expected_wait(0, 0.02, 0.2, 1.0) == 0.0


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
    """Before any answer all endpoints of the home region cost the same."""
    r, _ = router(endpoint("light"), endpoint("heavy", weight=3.0), explore=0.0)
    for name in ("light", "heavy"):
        r.route(RequestFacts(region="near", tried=frozenset({"light", "heavy"} - {name})))
    found = Counter(r.route(HOME).state.id for _ in range(6))
    assert found == {"light": 1, "heavy": 5}


def reject(r: Router, clock: ManualClock, name: str) -> None:
    """Have a request to the endpoint answered with 503 at once, whatever the policy would pick."""
    others = frozenset(state.id for state in r.states if state.id != name)
    assignment = r.route(RequestFacts(region="near", tried=others))
    now = clock.time
    r.settle(assignment, Outcome(OutcomeKind.ERROR_STATUS, 503, now, now, now))


def test_full_queue_limits_the_requests_in_flight() -> None:
    """One that serves a request at a time rejects the 21st; the other takes a hundred times as long."""
    r, clock = router(endpoint("near"), endpoint("slow"), explore=0.0)
    measure(r, clock, near=0.001, slow=0.1)
    sent = [r.route(RequestFacts(region="near", tried=frozenset({"slow"}))) for _ in range(20)]
    assert set(picks(r)) == {"near"}
    reject(r, clock, "near")
    assert set(picks(r)) == {"slow"}
    for assignment in sent[:4]:
        clock.time += 0.001
        r.settle(assignment, outcome(assignment.routed_at, clock.time))
    assert r.find("near").latency.failures
    assert set(picks(r)) == {"near"}  # the rejection is not charged as a failure


def test_rejections_by_an_endpoint_with_few_requests_are_failures() -> None:
    r, clock = router(endpoint("near"), endpoint("slow"), explore=0.0)
    measure(r, clock, near=0.001, slow=0.1)
    for _ in range(5):
        reject(r, clock, "near")
    assert set(picks(r)) == {"slow"}
    clock.time += 0.5
    assert set(picks(r)) == {"slow"}


def test_failing_endpoint_is_tried_once_a_second() -> None:
    """At fifty requests per second, and it is doubted until it answers."""
    r, clock = router(endpoint("bad"), endpoint("good"), explore=0.0)
    measure(r, clock, bad=0.02, good=0.02)
    begun, failed, bad = clock.time, 0, r.find("bad")
    while clock.time < begun + 20.0:
        assignment = r.route(HOME)
        is_bad = assignment.state is bad
        failed += is_bad
        clock.time += 0.02
        kind = OutcomeKind.REFUSED if is_bad else OutcomeKind.OK
        r.settle(assignment, outcome(clock.time - 0.02, clock.time, kind))
    assert 15 <= failed <= 25
    assert [r.doubts(state) for state in r.states] == [True, False]
    answer(r, clock, "bad", 0.02)
    assert not r.doubts(bad)


def hang(r: Router, clock: ManualClock) -> list[Assignment]:
    """Have five requests to "a" hang while it and "b" answer all others for six seconds."""
    hanging = [r.route(RequestFacts(region="near", tried=frozenset("b"))) for _ in range(5)]
    measure(r, clock, 60, a=0.02, b=0.02)
    return hanging


def test_requests_that_hang_are_no_silence() -> None:
    """The endpoint costs no more than another: none waits for them."""
    r, clock = router(endpoint("a"), endpoint("b"), explore=0.0)
    measure(r, clock, a=0.02, b=0.02)
    hang(r, clock)
    assert r.find("a").overtaken.stuck == 5
    assert costs_by_name(r)["a"] < 1.1 * costs_by_name(r)["b"]


def test_requests_that_hung_may_all_be_answered_at_once() -> None:
    """As after a pause: too soon after each other to learn from each."""
    r, clock = router(endpoint("a"), endpoint("b"), explore=0.0)
    for state in r.states:
        state.connections = Connections(has_idle=True, round_trip=0.001)
    to_a = RequestFacts(region="near", tried=frozenset("b"))
    for _ in range(400):  # one is served at a time
        pair = r.route(to_a), r.route(to_a)
        for assignment in pair:
            clock.time += 0.02
            r.settle(assignment, outcome(assignment.routed_at, clock.time))
    hung = [r.route(to_a) for _ in range(3)]
    measure(r, clock, 30, a=0.02, b=0.02)
    for assignment in hung:
        r.settle(assignment, outcome(assignment.routed_at, clock.time))
    r.route(HOME)
    assert r.fallback_picks == 0


def test_handshake_longer_than_a_request_is_no_distance() -> None:
    """The only one since a disturbance of the network may be long ago, as connections stay open."""
    r, clock = router(endpoint("a"), endpoint("b"), explore=0.0)
    a, b = r.states
    for trip in (0.005, 0.04, 0.005):
        a.connections = Connections(has_idle=True, round_trip=trip)
        b.connections = Connections(has_idle=True, round_trip=0.005)
        measure(r, clock, 100, a=0.02, b=0.02)
        cost, usual = costs(r)
        assert cost == pytest.approx(usual, rel=0.05), trip


def test_slow_body_is_no_silence() -> None:
    """Once the response head is here, a download or token stream says nothing about the endpoint's speed."""
    r, clock = router(*map(endpoint, "ab"), explore=0.0)
    measure(r, clock, a=0.02, b=0.02)
    streams = [r.route(RequestFacts(region="near", tried=frozenset({"b"}))) for _ in range(4)]
    for assignment in streams:
        assignment.answered(clock.time)
        assignment.answered(clock.time)
    a = r.find("a")
    assert (a.awaiting, a.in_flight) == (0, 4)
    trace = traced(r)

    def cost() -> float:
        r.route(HOME)
        step = last(trace).steps[0]
        return step.scores[step.candidates.index(a)]

    before = cost()
    clock.time += 2.0
    assert cost() == pytest.approx(before, rel=0.01)
    elsewhere = a.awaiting  # the two that `cost` has sent
    r.settle(streams[0], outcome(clock.time - 2.0, clock.time))
    assert a.awaiting == elsewhere


def test_traffic_returns_soon_after_an_endpoint_recovers() -> None:
    """Eight times slower for five seconds; 20 requests per second and endpoint. Its share is back within two seconds
    of its recovery."""
    r, clock = router(*map(endpoint, "abc"))
    under_way: list[tuple[float, object]] = []
    found: list[tuple[float, str]] = []
    for step in range(1200):
        clock.time = step / 60
        for ended_at, assignment in list(under_way):
            if ended_at <= clock.time:
                under_way.remove((ended_at, assignment))
                r.settle(assignment, outcome(assignment.routed_at, ended_at))  # type: ignore[arg-type,attr-defined]
        assignment = r.route(HOME)
        found.append((clock.time, assignment.state.id))
        slow = assignment.state.id == "a" and 5.0 <= clock.time < 10.0
        under_way.append((clock.time + (0.24 if slow else 0.03), assignment))

    def share(since: float, until: float) -> float:
        names = [name for at, name in found if since <= at < until]
        return names.count("a") / len(names)

    assert share(3.0, 5.0) == pytest.approx(1 / 3, abs=0.05)
    assert share(6.0, 10.0) < 0.1
    assert share(12.0, 14.0) == pytest.approx(1 / 3, abs=0.05)


def test_pause_is_noticed_and_its_end_too() -> None:
    """The faster of two endpoints answers nothing for 1.6 s, and then all at once; 130 requests per second. Eight
    answers are expected in 62 ms, and within two seconds of the end all go to it again."""
    r, clock = router(*map(endpoint, "ab"), explore=0.0)
    for state in r.states:
        state.connections = Connections(has_idle=True, round_trip=0.005)
    under_way: list[tuple[float, Assignment]] = []
    found: list[tuple[float, str]] = []
    for step in range(1500):
        clock.time = step / 130
        for ended_at, assignment in sorted(under_way, key=lambda item: item[0]):
            if ended_at <= clock.time:
                under_way.remove((ended_at, assignment))
                r.settle(assignment, outcome(assignment.routed_at, ended_at))
        assignment = r.route(HOME)
        name = assignment.state.id
        found.append((clock.time, name))
        ends_at = clock.time + (0.035 if name == "a" else 0.055)
        under_way.append((8.6 if name == "a" and 7.0 <= ends_at < 8.6 else ends_at, assignment))

    def sent(since: float, until: float) -> Counter[str]:
        return Counter(name for at, name in found if since <= at < until)

    assert sent(6.0, 7.0) == {"a": 130}
    assert sent(7.0, 8.6)["a"] < 25
    assert sent(10.6, 11.1) == {"a": 65}


def test_stale_endpoint_is_explored() -> None:
    """At the configured rate, and by one request at a time."""
    r, clock = router(endpoint("near"), endpoint("far", "away"), explore=1.0)
    clock.time = 100.0
    trace = traced(r)
    measure(r, clock, near=0.02)
    while r.route(HOME).state.id != "far":
        pass
    assert last(trace).reasons == (EXPLORED,)
    assert set(picks(r)) == {"near"}


def test_pick_and_observe_make_few_calls() -> None:
    """For two endpoints at most 60 Python calls on average, those of the policy and all that they make."""
    r, clock = router(endpoint("one"), endpoint("two"))
    calls = depth = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls, depth
        if event == "return" and depth:
            depth -= 1
        elif event == "call" and (depth or frame.f_code.co_name in ("pick", "observe")):
            depth += 1
            calls += 1

    def serve(requests: int) -> None:
        for _ in range(requests):
            assignment = r.route(HOME)
            clock.time += 0.02
            r.settle(assignment, outcome(clock.time - 0.02, clock.time))
            clock.time += 0.01

    serve(300)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        serve(100)
    finally:
        sys.setprofile(before)
    assert calls / 100 <= 60


def test_large_regions_are_sampled() -> None:
    """Sixteen of each region are compared, different ones each time."""
    r, clock = router(*(endpoint(f"e{n}") for n in range(30)), explore=0.0)
    measure(r, clock, 10, **{f"e{n}": 0.02 for n in range(30)})
    trace = traced(r)
    assert len(picks(r, 200)) == 30
    assert len(last(trace).steps[0].candidates) == 16


def test_endpoint_that_moves_to_another_region_is_learned_anew() -> None:
    r, clock = router(*map(endpoint, "ab"), explore=0.0)
    measure(r, clock, a=0.06, b=0.6)
    r.replace([endpoint("a"), endpoint("b", "away")])
    r.find("b").connections = Connections(True, 0.01)
    assert r.route(HOME).state.id == "b"


def test_replaced_policy_is_freed_without_the_garbage_collector() -> None:
    """It does not run while requests are served, and the endpoints outlive the policy."""
    states = [EndpointState(endpoint(name)) for name in "ab"]

    with without_collections():  # which also leaves out what exists already
        for _ in range(5):
            policy = Steelyard(Random(1))
            policy.members_changed(states, 0.0)
            for state in states:
                policy.observe(state, outcome(0.0, 0.02), 0.02)
            del policy
        assert sum(isinstance(one, Estimate) for one in gc.get_objects()) == len(states)


def test_fits_that_no_answer_tells_apart_are_not_needed() -> None:
    """A region with one fit for each possible concurrency from the start finds the same, bit for bit."""
    few, all_ = (RegionService(Shape()), RegionService(Shape()))
    all_.fits = [Sums() for _ in CONCURRENCIES]
    rng, found = Random(7), list[list[float]]()
    members = [[EndpointService(region) for _ in range(3)] for region in (few, all_)]
    for region, own in zip((few, all_), members, strict=True):
        region.members.extend(own)
    for number in range(3000):
        at, met, latency, which = (
            number * 0.01,
            rng.choice((1, 2, 3, 7)),
            rng.expovariate(20.0),
            rng.randrange(3),
        )
        for own in members:
            own[which].learn(latency, 0.01, met, at)
    for region, own in zip((few, all_), members, strict=True):
        found.append([region.mean, region.concurrency, region.noise, region.shape.variation, region.spread])
        found[-1] += [member.seconds for member in own]
    assert found[0] == found[1]
    assert len(few.fits) == CONCURRENCIES.index(8.0) + 1
