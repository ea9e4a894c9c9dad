"""Policies that take turns: shares by weight, evenly interleaved, and balancers out of step with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from policies import Endpoint, EndpointState, Outcome, OutcomeKind, ReportedLoad, RequestFacts, Router
from policies.algorithms.edf_round_robin import EdfRoundRobin
from policies.algorithms.join_idle_queue import JoinIdleQueue
from policies.algorithms.reported_load import EndpointReport, ReportedLoadRoundRobin
from policies.algorithms.round_robin import RoundRobin
from policies.algorithms.smooth_round_robin import SmoothRoundRobin
from policies.contract import ManualClock
from policies.policy import PolicyMaker
from tests.support.traces import traced

FACTS = RequestFacts(region="x")
TURNS = [RoundRobin, SmoothRoundRobin, EdfRoundRobin, ReportedLoadRoundRobin]


def members(weights: Sequence[float]) -> list[Endpoint]:
    return [Endpoint(str(i), "http://x", "x", weight) for i, weight in enumerate(weights)]


def router(
    make: PolicyMaker, weights: list[float], seed: int = 11, clock: ManualClock | None = None
) -> Router:
    return Router(members(weights), make(Random(seed)), clock or ManualClock(), Random(12))


def picks(r: Router, times: int) -> list[int]:
    return [int(r.route(FACTS).endpoint.id) for _ in range(times)]


def largest_deviation(taken: list[int], weights: list[float]) -> float:
    """The largest excess or lack of any endpoint, in requests, over any stretch."""
    worst = 0.0
    for i, weight in enumerate(weights):
        share, count, low, high = weight / sum(weights), 0, 0.0, 0.0
        for n, picked in enumerate(taken, 1):
            count += picked == i
            low, high = min(low, count - n * share), max(high, count - n * share)
        worst = max(worst, high - low)
    return worst


@pytest.mark.parametrize("make", TURNS)
@pytest.mark.parametrize("weights", [[1.0] * 7, [5.0, 1.0, 1.0], [1.0, 2.0, 3.0], [0.3, 2.5, 9.0, 1.1]])
def test_turns_follow_weights(make: PolicyMaker, weights: list[float]) -> None:
    """After any number of picks no endpoint is two requests from its share, from any start."""
    for seed in range(10):
        assert largest_deviation(picks(router(make, weights, seed), 500), weights) < 2.0


@pytest.mark.parametrize("weights", [[5.0, 1.0, 1.0], [10.0, 1.0, 1.0, 1.0, 1.0, 1.0], [100.0, 1.0, 1.0]])
@pytest.mark.parametrize("make", [RoundRobin, SmoothRoundRobin])
def test_turns_interleave_as_much_as_possible(make: PolicyMaker, weights: list[float]) -> None:
    """nginx's order for 5, 1, 1, rotated: a b a c and three a; light endpoints are never adjacent where the heavy one
    has enough turns."""
    for seed in range(20):
        taken = picks(router(make, weights, seed), 4 * int(sum(weights)))[int(sum(weights)) :]
        lights = [n for n, picked in enumerate(taken) if picked]
        apart = [b - a for a, b in pairwise(lights)]
        assert min(apart) >= (2 if weights[0] < 100 else 34)
        assert taken[: int(sum(weights))] == taken[int(sum(weights)) : 2 * int(sum(weights))]


def test_smooth_round_robin_is_fair_after_changes() -> None:
    """A new endpoint neither waits for a whole round nor gets one of its own, whatever changed before."""
    r = router(SmoothRoundRobin, [1, 2, 3, 4])
    rng = Random(3)
    for n in range(60):
        r.set_healthy("0", rng.random() < 0.5)
        picks(r, n)
        weights = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0][: rng.randrange(2, 7)]
        r.replace(members(weights))
        r.set_healthy("0", True)
        assert largest_deviation(picks(r, 50), weights) < 2.5


@pytest.mark.parametrize("make", TURNS)
def test_returned_endpoint_does_not_catch_up(make: PolicyMaker) -> None:
    """The others share its turns meanwhile; afterwards it has its own and no more."""
    r = router(make, [1, 1, 2])
    picks(r, 40)
    r.set_healthy("2", False)
    gone = Counter(picks(r, 40))
    assert (gone[0], gone[1], gone[2]) == (20, 20, 0)
    r.set_healthy("2", True)
    back = Counter(picks(r, 40))
    assert [back[i] for i in range(3)] == pytest.approx([10, 10, 20], abs=2)


@pytest.mark.parametrize("make", TURNS)
def test_retry_passes_over_tried_endpoints(make: PolicyMaker) -> None:
    """If all were tried, one of them is picked."""
    r = router(make, [1, 1, 1])
    for _ in range(20):
        assert r.route(RequestFacts(tried=frozenset("02"))).endpoint.id == "1"
    assert r.route(RequestFacts(tried=frozenset("012"))).endpoint.id in "012"
    assert (r.fallback_picks, r.last_fault) == (0, None)


def test_edf_begins_anywhere_and_continues_after_a_rebuild() -> None:
    """The heaviest is first in proportion to its weight only. A rebuild, as after a change of weight, changes no
    turn."""
    firsts = Counter(picks(router(EdfRoundRobin, [4, 1, 1, 1, 1], seed), 1)[0] for seed in range(400))
    assert firsts[0] / 400 == pytest.approx(0.62, abs=0.08)  # P(u/4 is the least of u/4 and four u) = 0.62
    r, undisturbed = router(EdfRoundRobin, [4, 1, 1]), router(EdfRoundRobin, [4, 1, 1])
    taken = []
    for _ in range(30):
        taken += picks(r, 1)
        r.replace(members([4, 1, 1]))
    assert taken == picks(undisturbed, 30)


def test_edf_with_few_available_endpoints() -> None:
    """Two of a thousand: it does not visit all others, and weights count."""
    r = router(EdfRoundRobin, [1.0] * 998 + [1.0, 3.0])
    for i in range(998):
        r.set_healthy(str(i), False)
    seen = Counter(picks(r, 2000))
    assert seen[999] / 2000 == pytest.approx(0.75, abs=0.04)


# --- reported load


class Reporting:
    """Three endpoints before a policy by reported load."""

    def __init__(self, **options: float) -> None:
        self.clock = ManualClock()
        self.policy = ReportedLoadRoundRobin(Random(11), **options)
        self.router = router(lambda rng: self.policy, [1, 1, 1], clock=self.clock)
        self.trace = traced(self.router, keep=900)

    def run(self, loads: dict[str, float], rates: dict[str, int], seconds: int) -> None:
        """For so many seconds, each endpoint answers at this rate and reports its utilization."""
        for _ in range(seconds * 10):
            self.clock.time += 0.1
            now = self.clock.time
            for name, rate in rates.items():
                load = ReportedLoad(utilization=loads[name]) if name in loads else None
                outcome = Outcome(OutcomeKind.OK, 200, now, now, now, reported_load=load)
                for _ in range(rate // 10):
                    self.policy.observe(self.router.find(name), outcome, now)
            self.policy.tick(now)

    def weights(self) -> dict[str, float]:
        """The weights in use, as explained for 90 picks."""
        picks(self.router, 90)
        return {
            state.id: one.steps[0].scores[0]
            for one in [*self.trace.recent][-90:]
            for state in one.steps[0].candidates
            if isinstance(state, EndpointState)
        }


def test_weight_from_reports_is_that_of_the_grfc() -> None:
    """w = qps/(utilization + eps/qps × penalty): 20 a second, utilization 0.5, every tenth an error: 20/(0.5 + 0.1 ×
    2)."""
    report = EndpointReport()
    for n in range(3000):
        report.count(n % 10 == 0, n * 0.05)
        report.hear(ReportedLoad(utilization=0.5), n * 0.05, 180.0)
    assert report.weight(150.0, 10.0, 180.0, 2.0) == pytest.approx(20 / (0.5 + 0.1 * 2), rel=0.03)
    assert report.weight(150.0, 10.0, 180.0, 0.0) == pytest.approx(20 / 0.5, rel=0.03)


def test_reports_count_between_blackout_and_expiry() -> None:
    """From 10 s after the first to 180 s after the last; then there is a blackout again."""
    report = EndpointReport()
    for n in range(101):
        report.count(False, 100.0 + n * 0.1)
        report.hear(ReportedLoad(utilization=0.5), 100.0 + n * 0.1, 180.0)
    assert report.weight(109.9, 10.0, 180.0, 1.0) == 0.0
    assert report.weight(110.0, 10.0, 180.0, 1.0) > 0.0
    assert report.weight(289.9, 10.0, 180.0, 1.0) > 0.0
    assert report.weight(290.1, 10.0, 180.0, 1.0) == 0.0
    report.hear(ReportedLoad(utilization=0.5), 300.0, 180.0)
    report.count(False, 309.0)
    assert report.weight(309.0, 10.0, 180.0, 1.0) == 0.0
    assert report.weight(310.0, 10.0, 180.0, 1.0) > 0.0


def test_shares_follow_requests_per_utilization() -> None:
    """The same rate at half the utilization: twice the requests. An endpoint without reports has the mean of the
    others. What is neither a success nor a failure does not count."""
    pool = Reporting()
    for seconds in (14, 2):
        pool.run({"0": 0.25, "1": 0.5}, {"0": 20, "1": 20, "2": 20}, seconds)
        for kind in (OutcomeKind.ABANDONED, OutcomeKind.BUSY) * 100:
            pool.policy.observe(pool.router.find("0"), Outcome(kind, None, 14.0, None, 14.0), 14.0)
    assert pool.weights() == pytest.approx({"0": 80, "1": 40, "2": 60}, rel=0.05)
    seen = Counter(picks(pool.router, 900))
    assert [seen[i] for i in range(3)] == pytest.approx([400, 200, 300], abs=12)


@pytest.mark.parametrize("loads", [{}, {"0": 0.2}])
def test_fewer_than_two_reporting_endpoints_use_configured_weights(loads: dict[str, float]) -> None:
    pool = Reporting()
    pool.run(loads, {"0": 20, "1": 20, "2": 20}, 15)
    assert pool.weights() == {"0": 1.0, "1": 1.0, "2": 1.0}


def test_weights_are_renewed_once_per_update_interval() -> None:
    """Not with every report: a rebuild visits all endpoints."""
    pool = Reporting(update=5.0)
    rates = {"0": 20, "1": 20, "2": 20}
    pool.run({"0": 0.25, "1": 0.5}, rates, 16)
    before = pool.weights()
    pool.run({"0": 0.5, "1": 0.25}, rates, 3)
    assert pool.weights() == before
    pool.run({"0": 0.5, "1": 0.25}, rates, 3)
    after = pool.weights()
    assert after["0"] < before["0"]
    assert after["1"] > before["1"]


def test_probes_may_carry_reports() -> None:
    report, pool = ReportedLoad(utilization=0.25), Reporting()
    for second in range(15):
        for name in "01":
            pool.policy.observe_probe(pool.router.find(name), report, 0.01, float(second))
        pool.run({}, {"0": 20, "1": 20, "2": 20}, 1)
    assert pool.weights() == pytest.approx(dict.fromkeys("012", 80), rel=0.05)


# --- join-idle-queue


def jiq(count: int = 4) -> Router:
    return router(JoinIdleQueue, [1.0] * count)


def test_idle_endpoints_are_picked_in_the_order_of_becoming_idle() -> None:
    """As many requests as endpoints: each has one."""
    r = jiq()
    held = {a.endpoint.id: a for a in (r.route(FACTS) for _ in range(4))}
    assert len(held) == 4
    for name in "203":
        r.settle(held[name], Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
    assert picks(r, 3) == [2, 0, 3]


def test_random_pick_by_weight_if_none_is_idle() -> None:
    r = router(JoinIdleQueue, [1, 3])
    picks(r, 2)
    seen = Counter(picks(r, 2000))
    assert seen[1] / 2000 == pytest.approx(0.75, abs=0.04)


def test_endpoint_that_returns_idle_is_queued_at_once() -> None:
    """Whether its turn came or it became idle while it was unavailable."""
    r = jiq(2)
    r.set_healthy("0", False)
    assert picks(r, 3)[0] == 1
    r.set_healthy("0", True)
    assert picks(r, 1) == [0]
    r = jiq(2)
    held = [r.route(FACTS) for _ in range(2)]
    r.set_healthy("0", False)
    r.settle(next(a for a in held if a.endpoint.id == "0"), Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
    picks(r, 3)
    r.set_healthy("0", True)
    assert picks(r, 1) == [0]


def test_idle_endpoint_is_always_picked_before_a_busy_one() -> None:
    """Through any changes of health and membership."""
    r, rng = jiq(8), Random(5)
    held = []
    for n in range(2000):
        idle = {s.id for s in r.available if not s.in_flight}
        held.append(r.route(FACTS))
        assert not idle or held[-1].endpoint.id in idle
        while held and rng.random() < 0.55:
            r.settle(held.pop(rng.randrange(len(held))), Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
        if n % 7 == 0:
            r.set_healthy(str(rng.randrange(4)), rng.random() < 0.6)
        if n % 50 == 0:
            r.replace(members([1.0] * rng.randrange(4, 9)))
    assert r.fallback_picks == 0
