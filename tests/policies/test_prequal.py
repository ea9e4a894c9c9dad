"""Prequal: how often an answer is used, who is hot, who is taken, what is removed; and that nobody has to probe."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from policies import EndpointState, Outcome, OutcomeKind, ReportedLoad, RequestFacts, Router
from policies.contract import REGION, Answer, ManualClock, Trial, endpoints
from policies.errors import BadPolicyOption
from policies.least_in_flight import LeastInFlight
from policies.policy import PolicyMaker
from policies.prequal import Prequal, uses
from policies.probe_pool import Probe, ProbePool
from policies.stats.latency_by_load import KEEP, LatencyByLoad, degree

FACTS = RequestFacts(region=REGION)


def router(*weights: float, **options: Any) -> tuple[Router, Prequal]:
    policy = Prequal(Random(1), **options)
    return Router(endpoints(*weights), policy, ManualClock(), Random(2)), policy


def pool_of(r: Router, *answers: tuple[int, float], q: float = 0.84) -> ProbePool:
    """One probe per endpoint, in their order: requests in flight, latency."""
    pool = ProbePool(16, 1.0, q)
    for state, (in_flight, latency) in zip(r.states, answers, strict=True):
        pool.add(state, Probe(in_flight, latency, 0.0, 5))
    return pool


# --- how often


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
def test_an_answer_is_used_as_the_paper_says(endpoints: int, b: float) -> None:
    """b = max(1, (1 + δ)/((1 − m/n)·r_probe − r_remove)); where the pool is so large that it drains, the cap."""
    assert uses(16, endpoints, 3.0, 1.0, 1.0, 100.0) == pytest.approx(b)


def test_an_answer_is_used_once_at_least_and_not_above_the_cap() -> None:
    """Many endpoints, many probes: 1. Few endpoints: what `reuse` says."""
    assert uses(16, 10_000, 10.0, 1.0, 1.0, 4.0) == 1.0
    assert uses(16, 25, 3.0, 1.0, 1.0, 4.0) == 4.0


def test_a_part_of_a_use_is_drawn() -> None:
    """b = 1.316 at a hundred endpoints: 1 in two thirds of the cases, else 2."""
    r, policy = router(*[1] * 100)
    drawn: Counter[int] = Counter()
    for _ in range(3000):
        policy.observe_probe(r.states[0], ReportedLoad(in_flight=1), 0.01, 0.0)
        drawn[policy._pool.probes[r.states[0]].uses] += 1
    assert sorted(drawn) == [1, 2]
    assert drawn[2] / 3000 == pytest.approx(0.316, abs=0.03)


# --- who is taken


def test_the_cold_one_with_the_least_latency_is_taken() -> None:
    """Loads 1 2 3 9 at quantile 0.75: hot is who has more than 9; at 0.7, more than 3. The quickest is hot then."""
    r, _ = router(1, 1, 1, 1)
    answers = (1, 0.3), (2, 0.2), (3, 0.25), (9, 0.1)
    assert pool_of(r, *answers, q=0.75).best(FACTS, 0.0, 2) is r.states[3]
    assert pool_of(r, *answers, q=0.7).best(FACTS, 0.0, 2) is r.states[1]


def test_where_all_are_hot_the_least_loaded_is_taken() -> None:
    """The quantile is of loads heard of lately, so all that are left may be above it."""
    r, _ = router(1, 1, 1)
    pool = pool_of(r, (8, 0.1), (7, 0.9), (9, 0.2))
    for _ in range(200):
        pool.add(r.states[0], Probe(1, 0.1, 0.0, 5))
    pool.add(r.states[0], Probe(8, 0.1, 0.0, 5))
    assert pool.hot_above < 7
    assert pool.best(FACTS, 0.0, 2) is r.states[1]


def test_load_is_per_weight() -> None:
    """Six requests at a weight of three are two."""
    r, _ = router(1, 1, 3)
    pool = pool_of(r, (2, 0.3), (3, 0.2), (6, 0.1), q=0.34)
    assert pool.hot_above == 2.0
    assert pool.best(FACTS, 0.0, 2) is r.states[2]


def test_equals_are_taken_by_load() -> None:
    """As on the day that nothing is known of anybody."""
    r, _ = router(1, 1, 1)
    assert pool_of(r, (2, 0.1), (1, 0.1), (3, 0.1)).best(FACTS, 0.0, 2) is r.states[1]


def test_who_cannot_take_it_is_not_considered() -> None:
    """Tried, or not on offer; with fewer answers than are needed, nobody is."""
    r, _ = router(1, 1, 1)
    pool = pool_of(r, (1, 0.1), (1, 0.2), (1, 0.3))
    r.set_healthy("here-0", False)
    assert pool.best(FACTS, 0.0, 2) is r.states[1]
    assert pool.best(RequestFacts(tried=frozenset({"here-1"})), 0.0, 1) is r.states[2]
    assert pool.best(RequestFacts(tried=frozenset({"here-1"})), 0.0, 2) is None


def test_quick_failures_are_hot() -> None:
    """Idle and quick, and last of all: half of its requests fail, so it seems to have fifty."""
    r, _ = router(1, 1)
    for kind in (OutcomeKind.OK, OutcomeKind.RESET):
        r.states[0].count(Outcome(kind, 200, 0.0, 0.01, 0.01), 0)
    pool = pool_of(r, (0, 0.001), (9, 0.9))
    assert pool.hot_above == 9
    assert pool.best(FACTS, 0.01, 2) is r.states[1]
    assert pool.best(FACTS, 1.02, 2) is r.states[0]  # a second later, one look


# --- the pool


def test_what_this_unit_has_there_is_the_least_load() -> None:
    """An answer of half a second ago says that it is idle, and four of ours are there since."""
    r, _ = router(1, 1)
    pool = pool_of(r, (0, 0.1), (3, 0.2))
    r.states[0].in_flight = 4
    assert pool.hot_above == 3
    assert pool.best(FACTS, 0.0, 2) is r.states[1]


def test_a_use_counts_one_busier_and_the_last_one_ends_it() -> None:
    """Between probes the pool is kept right by what is sent."""
    r, _ = router(1, 1)
    pool = pool_of(r, (1, 0.1), (1, 0.2))
    pool.probes[r.states[0]].uses = 2
    pool.use(r.states[0])
    assert pool.probes[r.states[0]].in_flight == 2
    pool.use(r.states[0])
    assert list(pool.probes) == [r.states[1]]


def test_the_pool_has_one_answer_per_endpoint_and_no_more_than_its_size() -> None:
    """The newest of each; the oldest goes where there is no room."""
    r, _ = router(*[1] * 5)
    pool = ProbePool(3, 1.0, 0.84)
    for n, state in enumerate(r.states):
        pool.add(state, Probe(n, 0.1, float(n), 1))
    assert [s.order for s in pool.probes] == [2, 3, 4]
    pool.add(r.states[2], Probe(7, 0.1, 9.0, 1))
    assert [(s.order, p.in_flight) for s, p in pool.probes.items()] == [(3, 3), (4, 4), (2, 7)]


def test_old_answers_go() -> None:
    """At the age that is stated, not before."""
    r, _ = router(1, 1)
    pool = ProbePool(16, 1.0, 0.84)
    pool.add(r.states[0], Probe(1, 0.1, 0.0, 1))
    pool.add(r.states[1], Probe(1, 0.1, 0.5, 1))
    pool.expire(1.0)
    assert len(pool.probes) == 2
    pool.expire(1.2)
    assert list(pool.probes) == [r.states[1]]


def test_the_worst_and_the_oldest_are_removed_in_turn() -> None:
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
    """One by one up to 3, then two per doubling; busier is never less."""
    assert [degree(n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16)] == [0, 1, 2, 3, 4, 4, 5, 5, 6, 7, 8]
    assert all(degree(n) <= degree(n + 1) <= degree(n) + 1 for n in range(5000))


def test_latency_is_the_median_of_recent_ones_at_that_load() -> None:
    """One outlier does not move it; what was seen at other loads does not count; only the last few do."""
    known = LatencyByLoad()
    for seconds in (0.1, 0.1, 9.0, 0.1):
        known.record(1, seconds, 0.0)
    known.record(20, 0.7, 0.0)
    assert known.read(1, 0.0) == 0.1
    assert known.read(22, 0.0) == 0.7
    for _ in range(KEEP):
        known.record(1, 0.2, 0.0)
    assert known.read(1, 0.0) == 0.2


def test_the_median_is_of_a_sliding_window() -> None:
    """Against the plain definition, over random samples."""
    known, rng, seen = LatencyByLoad(), Random(7), []
    for _ in range(300):
        seen.append(rng.choice([0.1, 0.2, rng.random()]))
        known.record(2, seen[-1], 0.0)
        assert known.read(2, 0.0) == sorted(seen[-KEEP:])[len(seen[-KEEP:]) // 2]


def test_the_nearest_load_stands_in() -> None:
    """Nothing is known at 3 in flight: what is known at 2 is nearer than at 9."""
    known = LatencyByLoad()
    assert known.read(3, 0.0) is None
    known.record(9, 0.9, 0.0)
    known.record(2, 0.2, 0.0)
    assert known.read(3, 0.0) == 0.2


def test_what_is_known_fades_and_is_forgotten() -> None:
    """By a tenth per second, and then begins anew."""
    known = LatencyByLoad()
    known.record(1, 0.4, 0.0)
    assert known.read(1, 2.5) == pytest.approx(0.3)
    assert known.read(1, 10.0) is None
    known.record(1, 0.1, 11.0)
    assert known.read(1, 11.0) == 0.1


# --- the policy


def test_three_are_probed_after_each_pick_without_replacement() -> None:
    """Each as often as any other; all where there are fewer; a part of a probe adds up."""
    r, policy = router(*[1] * 10)
    asked: list[EndpointState] = []
    r.on_probe = asked.append
    for n in range(1000):
        r.route(FACTS)
        assert len(set(asked[3 * n :])) == 3
    seen = Counter(state.id for state in asked)
    assert max(seen.values()) - min(seen.values()) < 100
    few, policy = router(1, 1)
    assert policy.probes(0.0) == few.states
    _, policy = router(*[1] * 10, probes=0.5)
    assert [len(policy.probes(0.0)) for _ in range(4)] == [0, 1, 0, 1]


def test_who_is_away_is_not_probed() -> None:
    """Checks ask those."""
    r, policy = router(1, 1, 1)
    r.set_healthy("here-1", False)
    assert [state.id for state in policy.probes(0.0)] == ["here-0", "here-2"]


def test_answers_decide() -> None:
    """What the workers say, not what this unit has in flight: others send there, too."""
    r, policy = router(1, 1, 1)
    r.on_probe = lambda state: None
    r.route(FACTS)
    for state, load in zip(r.states, (9, 0, 8), strict=True):
        policy.observe(state, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1), 0.0)
        r.probed(state, ReportedLoad(in_flight=load), 0.01, 0.0)
    assert [r.route(FACTS).endpoint.id for _ in range(3)] == ["here-1"] * 3


def test_reports_in_responses_are_probes() -> None:
    """A response that says how busy its worker is fills the pool as an answer would."""
    r, policy = router(1, 1, 1)
    r.on_probe = lambda state: None
    r.route(FACTS)
    for n, load in enumerate((9, 2, 8)):
        answer = Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1, reported_load=ReportedLoad(in_flight=load))
        policy.observe(r.states[n], answer, 0.1)
    assert [probe.in_flight for probe in policy._pool.probes.values()] == [9, 2, 8]


def test_without_answers_it_is_the_less_loaded_of_two() -> None:
    """Somebody probes, and nobody answers: the pool runs dry, and requests go on."""
    r, policy = router(*[1] * 4)
    r.on_probe = lambda state: None
    r.route(FACTS)
    policy._pool.probes.clear()
    held = Counter(r.route(FACTS).endpoint.id for _ in range(399))
    assert max(held.values()) <= 104
    assert (r.fallback_picks, policy._pool.probes) == (0, {})


def test_members_that_left_leave_the_pool() -> None:
    """And an answer that comes late is nobody's."""
    r, policy = router(1, 1, 1)
    r.on_probe = lambda state: None
    r.route(FACTS)
    gone = r.states[2]
    for state in r.states:
        r.probed(state, ReportedLoad(in_flight=1), 0.01, 0.0)
    r.replace(endpoints(1, 1))
    r.probed(gone, ReportedLoad(in_flight=0), 0.01, 0.0)
    assert list(policy._pool.probes) == r.states
    assert gone not in policy._latencies


def test_one_whose_latency_is_unknown_has_one_trial_at_a_time() -> None:
    """It is taken first, and then not until it has answered."""
    r, policy = router(1, 1, 1)
    for state in r.states[:2]:
        policy.observe(state, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1), 0.1)
        state.latency.record(0.1, 0, 0.1)
    clock: ManualClock = r._now.__self__  # type: ignore[attr-defined]
    clock.time = 0.1
    taken = [r.route(FACTS).endpoint.id for _ in range(3)]
    assert taken[0] == "here-2"
    assert "here-2" not in taken[1:]


def test_a_sample_belongs_to_the_load_that_the_request_met() -> None:
    """Not to what it leaves behind: the last to leave a queue has waited longest, and leaves nobody. What others have
    there counts, as far as the worker reports it."""
    r, policy = router(1)
    state = r.states[0]
    first, second = r.route(FACTS), r.route(FACTS)
    r.settle(first, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
    r.settle(second, Outcome(OutcomeKind.OK, 200, 0.0, 0.2, 0.2))
    known = policy._latencies[state]
    assert (known.read(0, 0.1), known.read(1, 0.2)) == (0.1, 0.2)
    third = r.route(FACTS)
    load = ReportedLoad(in_flight=8)
    r.settle(third, Outcome(OutcomeKind.OK, 200, 0.2, 0.9, 0.9, reported_load=load))
    assert known.read(8, 0.9) == pytest.approx(0.7)
    assert known.read(0, 0.1) == 0.1


def test_a_use_takes_the_latency_of_the_next_load() -> None:
    """Quick while it is idle and slow with one request: the second goes elsewhere before any answer comes."""
    r, policy = router(1, 1)
    r.on_probe = lambda state: None
    policy.probes(0.0)
    for state, latencies in zip(r.states, ((0.1, 0.9), (0.2, 0.9)), strict=True):
        for load, seconds in enumerate(latencies):
            policy._latencies[state].record(load, seconds, 0.0)
        r.probed(state, ReportedLoad(in_flight=0), 0.01, 0.0)
    policy._pool.hot_above = 9.0  # or it would go elsewhere for being busier
    assert [r.route(FACTS).endpoint.id for _ in range(2)] == ["here-0", "here-1"]


def slow_share(make: PolicyMaker, answer: Answer) -> float:
    """What the first of eight gets."""
    trial = Trial(make, endpoints(*[1] * 8), answer)
    trial.open_loop(120, 30)
    return trial.picked(since=5)["here-0"] / trial.picked(since=5).total()


def test_the_slow_one_is_left() -> None:
    """Of eight one takes five times as long: least in flight sees it only while it has requests; this one hardly ever
    goes there, and keeps looking."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        return (0.5 if state.order == 0 else 0.1), OutcomeKind.OK

    share = slow_share(Prequal, answer)
    assert 0 < share < slow_share(LeastInFlight, answer) / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": 1}, "pool: must be from 2 to 1024, got 1"),
        ({"oldest": 0.0}, "oldest: must be > 0, got 0.0"),
        ({"q_rif": 1.5}, "q_rif: must be from 0 to 1, got 1.5"),
        ({"probes": 0.0}, "probes: must be from 0.1 to 100, got 0.0"),
        ({"remove": -1.0}, "remove: must be from 0 to 100, got -1.0"),
        ({"delta": -1.0}, "delta: must be >= 0, got -1.0"),
        ({"reuse": 0.5}, "reuse: must be >= 1, got 0.5"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    """One line that says what is allowed."""
    with pytest.raises(BadPolicyOption) as error:
        Prequal(Random(1), **options)
    assert str(error.value) == message
