"""Prequal: reuse of probes, hot and cold endpoints, the pick, removal of probes, and operation without probes."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from policies import EndpointState, Outcome, OutcomeKind, ReportedLoad, RequestFacts, Router
from policies.algorithms.prequal import SAMPLES_PER_DEGREE, LatencyByLoad, Prequal, degree, uses
from policies.contract import REGION, ManualClock, endpoints
from policies.insight.explanation import Trace
from policies.selection.probe_pool import ProbePool, ProbeResponse
from tests.support.traces import last, traced

FACTS = RequestFacts(region=REGION)


def router(*weights: float, **options: Any) -> tuple[Router, Prequal]:
    policy = Prequal(Random(1), **options)
    return Router(endpoints(*weights), policy, ManualClock(), Random(2)), policy


def pool_of(r: Router, *answers: tuple[int, float], q: float = 0.84) -> ProbePool:
    """One probe per endpoint, in their order: requests in flight, latency."""
    pool = ProbePool(16, 1.0, q)
    for state, (in_flight, latency) in zip(r.states, answers, strict=True):
        pool.add(state, ProbeResponse(in_flight, latency, 0.0, 5))
    return pool


# --- reuse


@pytest.mark.parametrize(
    ("endpoints", "b"),
    [
        (100, 2 / (0.84 * 3 - 1)),
        (32, 4.0),
        (25, 2 / (0.36 * 3 - 1)),
        (24, 100.0),
        (16, 100.0),
        (5, 100.0),
        (0, 100.0),
    ],
)
def test_probe_is_reused_as_in_the_paper(endpoints: int, b: float) -> None:
    """b = max(1, (1 + δ)/((1 − m/n)·r_probe − r_remove)); where the pool is so large that it drains, the cap."""
    assert uses(16, endpoints, 3.0, 1.0, 1.0, 100.0) == pytest.approx(b)


def test_reuse_is_at_least_one_and_at_most_the_cap() -> None:
    """Many endpoints, many probes: 1. Few endpoints: `reuse`."""
    assert uses(16, 10_000, 10.0, 1.0, 1.0, 4.0) == 1.0
    assert uses(16, 25, 3.0, 1.0, 1.0, 4.0) == 4.0


def test_fractional_reuse_is_drawn_at_random() -> None:
    """b = 1.317 at a hundred endpoints: 16 probes last for 15 b to 16 b picks, until fewer than two are left."""
    r, policy = router(*[1] * 100, remove=0.0, delta=2.32)
    r.on_probe = lambda state: None
    policy.probes(0.0)
    trace, picks = Trace(), 0
    r.explain(trace)
    for _ in range(300):
        for state in r.states[:16]:
            policy.observe_probe(state, ReportedLoad(in_flight=0), 0.01, 0.0)
        while trace.counts["no-probes"] == 0:
            r.settle(r.route(FACTS), Outcome(OutcomeKind.ABANDONED, None, 0.0, 0.0, 0.0))
            picks += 1
        picks -= 1
        trace.counts.clear()
    assert 15 * 1.317 <= picks / 300 <= 16 * 1.317


# --- the pick


def test_cold_endpoint_with_least_latency_is_picked() -> None:
    """Loads 1 2 3 9: at quantile 0.75 hot is above 9; at 0.7, above 3, and the quickest is hot."""
    r, _ = router(1, 1, 1, 1)
    answers = (1, 0.3), (2, 0.2), (3, 0.25), (9, 0.1)
    assert pool_of(r, *answers, q=0.75).best(FACTS, 0.0, 2) is r.states[3]
    assert pool_of(r, *answers, q=0.7).best(FACTS, 0.0, 2) is r.states[1]


def test_least_loaded_is_picked_if_all_are_hot() -> None:
    """The quantile is of recent loads, so all probes that are left may be above it."""
    r, _ = router(1, 1, 1)
    pool = pool_of(r, (8, 0.1), (7, 0.9), (9, 0.2))
    for _ in range(200):
        pool.add(r.states[0], ProbeResponse(1, 0.1, 0.0, 5))
    pool.add(r.states[0], ProbeResponse(8, 0.1, 0.0, 5))
    assert pool.hot_above < 7
    assert pool.best(FACTS, 0.0, 2) is r.states[1]


def test_load_is_per_weight() -> None:
    """Six requests at weight three are a load of two."""
    r, _ = router(1, 1, 3)
    pool = pool_of(r, (2, 0.3), (3, 0.2), (6, 0.1), q=0.34)
    assert pool.hot_above == 2.0
    assert pool.best(FACTS, 0.0, 2) is r.states[2]


def test_equal_latencies_are_picked_by_load() -> None:
    r, _ = router(1, 1, 1)
    assert pool_of(r, (2, 0.1), (1, 0.1), (3, 0.1)).best(FACTS, 0.0, 2) is r.states[1]


def test_tried_and_unavailable_endpoints_are_not_picked() -> None:
    """None is picked if fewer probes remain than are needed."""
    r, _ = router(1, 1, 1)
    pool = pool_of(r, (1, 0.1), (1, 0.2), (1, 0.3))
    r.set_healthy("here-0", False)
    assert pool.best(FACTS, 0.0, 2) is r.states[1]
    assert pool.best(RequestFacts(tried=frozenset({"here-1"})), 0.0, 1) is r.states[2]
    assert pool.best(RequestFacts(tried=frozenset({"here-1"})), 0.0, 2) is None


def test_quickly_failing_endpoint_is_hot() -> None:
    """Half of its requests fail, so its load is fifty, although it is idle and quick."""
    r, _ = router(1, 1)
    for kind in (OutcomeKind.OK, OutcomeKind.RESET):
        r.states[0].count(Outcome(kind, 200, 0.0, 0.01, 0.01), 0, 0)
    pool = pool_of(r, (0, 0.001), (9, 0.9))
    assert pool.hot_above == 9
    assert pool.best(FACTS, 0.01, 2) is r.states[1]
    assert pool.best(FACTS, 1.02, 2) is r.states[0]  # a second later, one look


# --- the pool


def test_own_requests_in_flight_are_a_lower_bound_of_load() -> None:
    """A probe of half a second ago says idle, and four own requests are there since."""
    r, _ = router(1, 1)
    pool = pool_of(r, (0, 0.1), (3, 0.2))
    r.states[0].in_flight = 4
    assert pool.hot_above == 3
    assert pool.best(FACTS, 0.0, 2) is r.states[1]


def test_use_adds_one_to_the_load_and_the_last_use_removes_the_probe() -> None:
    r, _ = router(1, 1)
    pool = pool_of(r, (1, 0.1), (1, 0.2))
    pool.probes[r.states[0]].uses = 2
    pool.use(r.states[0])
    assert pool.probes[r.states[0]].in_flight == 2
    pool.use(r.states[0])
    assert list(pool.probes) == [r.states[1]]


def test_pool_has_one_probe_per_endpoint_up_to_its_size() -> None:
    """The newest of each; the oldest is removed for lack of room."""
    r, _ = router(*[1] * 5)
    pool = ProbePool(3, 1.0, 0.84)
    for n, state in enumerate(r.states):
        pool.add(state, ProbeResponse(n, 0.1, float(n), 1))
    assert [s.order for s in pool.probes] == [2, 3, 4]
    pool.add(r.states[2], ProbeResponse(7, 0.1, 9.0, 1))
    assert [(s.order, p.in_flight) for s, p in pool.probes.items()] == [(3, 3), (4, 4), (2, 7)]


def test_old_probes_expire() -> None:
    r, _ = router(1, 1)
    pool = ProbePool(16, 1.0, 0.84)
    pool.add(r.states[0], ProbeResponse(1, 0.1, 0.0, 1))
    pool.add(r.states[1], ProbeResponse(1, 0.1, 0.5, 1))
    pool.expire(1.0)
    assert len(pool.probes) == 2
    pool.expire(1.2)
    assert list(pool.probes) == [r.states[1]]


def test_worst_and_oldest_probes_are_removed_alternately() -> None:
    """The busiest of the hot, else the slowest; two are left."""
    r, _ = router(*[1] * 6)
    pool = pool_of(r, (1, 0.1), (1, 0.2), (1, 0.9), (1, 0.3), (1, 0.1), (9, 0.1), q=0.8)
    removed = []
    for _ in range(6):
        before = list(pool.probes)
        pool.best(FACTS, 0.0, 2)
        pool.remove_one()
        removed += [state.order for state in before if state not in pool.probes]
    assert removed == [5, 0, 2, 1]


# --- latency by load


def test_degrees_of_load() -> None:
    """One by one up to 3, then two per doubling; monotonic."""
    assert [degree(n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16)] == [0, 1, 2, 3, 4, 4, 5, 5, 6, 7, 8]
    assert all(degree(n) <= degree(n + 1) <= degree(n) + 1 for n in range(5000))


def test_the_median_is_of_a_sliding_window() -> None:
    """Against the plain definition, with random samples."""
    known, rng, seen = LatencyByLoad(), Random(7), []
    for _ in range(300):
        seen.append(rng.choice([0.1, 0.2, rng.random()]))
        known.record(2, seen[-1], 0.0)
        assert known.read(2, 0.0) == sorted(seen[-SAMPLES_PER_DEGREE:])[len(seen[-SAMPLES_PER_DEGREE:]) // 2]


def test_nearest_load_is_used_without_samples_at_that_load() -> None:
    known = LatencyByLoad()
    assert known.read(3, 0.0) is None
    known.record(9, 0.9, 0.0)
    known.record(2, 0.2, 0.0)
    assert known.read(3, 0.0) == 0.2


def test_latency_by_load_fades_and_expires() -> None:
    """By a tenth per second."""
    known = LatencyByLoad()
    known.record(1, 0.4, 0.0)
    assert known.read(1, 2.5) == pytest.approx(0.3)
    assert known.read(1, 10.0) is None
    known.record(1, 0.1, 11.0)
    assert known.read(1, 11.0) == 0.1


# --- the policy


def test_three_are_probed_after_each_pick_without_replacement() -> None:
    """All equally often; all where there are fewer; fractions of a probe add up."""
    r, policy = router(*[1] * 10)
    probed: list[EndpointState] = []
    r.on_probe = probed.append
    for n in range(1000):
        r.route(FACTS)
        assert len(set(probed[3 * n :])) == 3
    seen = Counter(state.id for state in probed)
    assert max(seen.values()) - min(seen.values()) < 100
    few, policy = router(1, 1)
    assert policy.probes(0.0) == few.states
    _, policy = router(*[1] * 10, probes=0.5)
    assert [len(policy.probes(0.0)) for _ in range(4)] == [0, 1, 0, 1]


def test_unhealthy_endpoint_is_not_probed() -> None:
    """Active checks test it."""
    r, policy = router(1, 1, 1)
    r.set_healthy("here-1", False)
    assert [state.id for state in policy.probes(0.0)] == ["here-0", "here-2"]


@pytest.mark.parametrize("is_in_response", [False, True])
def test_reported_loads_decide_the_pick(is_in_response: bool) -> None:
    """In a probe or in a response; this process's requests in flight do not decide, since others send there, too."""
    r, policy = router(1, 1, 1)
    r.on_probe = lambda state: None
    r.route(FACTS)
    for state, in_flight in zip(r.states, (9, 0, 8), strict=True):
        load = ReportedLoad(in_flight=in_flight)
        in_response = load if is_in_response else None
        policy.observe(state, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1, reported_load=in_response), 0.0)
        if not is_in_response:
            r.probed(state, load, 0.01, 0.0)
    assert [r.route(FACTS).endpoint.id for _ in range(3)] == ["here-1"] * 3


def test_without_probe_answers_two_choices_decide() -> None:
    clock = ManualClock()
    r = Router(endpoints(*[1] * 4), Prequal(Random(1)), clock, Random(2))
    r.on_probe = lambda state: None
    r.route(FACTS)
    clock.time += 2.0  # the first probes are too old
    trace = traced(r)
    held = Counter(r.route(FACTS).endpoint.id for _ in range(399))
    assert max(held.values()) <= 104
    assert (r.fallback_picks, trace.counts["no-probes"]) == (0, 399)


def test_removed_endpoint_is_not_picked_after_a_late_probe() -> None:
    r, _ = router(1, 1, 1)
    r.on_probe = lambda state: None
    r.route(FACTS)
    gone = r.states[2]
    for state in r.states:
        r.probed(state, ReportedLoad(in_flight=1), 0.01, 0.0)
    r.replace(endpoints(1, 1))
    r.probed(gone, ReportedLoad(in_flight=0), 0.01, 0.0)
    trace = traced(r, keep=20)
    for _ in range(20):
        r.route(FACTS)
    assert r.fallback_picks == 0
    assert not [one for one in trace.recent for step in one.steps if gone in step.candidates]


def test_endpoint_without_measurements_gets_one_trial_at_a_time() -> None:
    """It is picked first, and then not until it has answered."""
    clock, policy = ManualClock(), Prequal(Random(1))
    r = Router(endpoints(1, 1, 1), policy, clock, Random(2))
    for state in r.states[:2]:
        policy.observe(state, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1), 0.1)
        state.latency.record(0.1, 0, 0.1)
    clock.time = 0.1
    taken = [r.route(FACTS).endpoint.id for _ in range(3)]
    assert taken[0] == "here-2"
    assert "here-2" not in taken[1:]


def test_sample_belongs_to_the_load_at_arrival() -> None:
    """Not to the load when it ends: the last of a queue has waited longest. Requests of other balancers count as the
    worker reports them."""
    r, policy = router(1)
    state = r.states[0]
    policy.probes(0.0)
    trace = traced(r)

    def latency_at(load: int) -> float:
        r.probed(state, ReportedLoad(in_flight=load), 0.01, 0.0)
        r.settle(r.route(FACTS), Outcome(OutcomeKind.ABANDONED, None, 0.0, 0.0, 0.0))
        return last(trace).steps[0].scores[0]

    first, second = r.route(FACTS), r.route(FACTS)
    r.settle(first, Outcome(OutcomeKind.OK, 200, -0.1, 0.0, 0.0))
    r.settle(second, Outcome(OutcomeKind.OK, 200, -0.2, 0.0, 0.0))
    assert (latency_at(0), latency_at(1)) == (0.1, 0.2)
    reported = ReportedLoad(in_flight=8)
    r.settle(r.route(FACTS), Outcome(OutcomeKind.OK, 200, -0.7, 0.0, 0.0, reported_load=reported))
    assert latency_at(0) == 0.1
    assert latency_at(8) == pytest.approx(0.7)


def test_use_moves_the_latency_to_the_next_load() -> None:
    """Quick while idle and slow with one request: the second goes elsewhere before any response."""
    r, policy = router(1, 1, q_rif=1.0)
    r.on_probe = lambda state: None
    policy.probes(0.0)
    for state, latencies in zip(r.states, ((0.1, 0.9), (0.2, 0.9)), strict=True):
        for load, seconds in enumerate(latencies):
            answer = Outcome(OutcomeKind.OK, 200, 0.0, seconds, seconds)
            state.count(answer, load, 0)
            policy.observe(state, answer, 0.0)
        for load in (9, 0):  # 9 is hot, so that a load of 1 is not
            r.probed(state, ReportedLoad(in_flight=load), 0.01, 0.0)
    assert [r.route(FACTS).endpoint.id for _ in range(2)] == ["here-0", "here-1"]
