"""Policies that go by turns: as often as the weights say, evenly interleaved, and not all balancers in step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from policies import Endpoint, EndpointState, Outcome, OutcomeKind, ReportedLoad, RequestFacts, Router
from policies.contract import ManualClock
from policies.edf_round_robin import EdfRoundRobin
from policies.errors import BadPolicyOption
from policies.join_idle_queue import JoinIdleQueue
from policies.policy import Policy, PolicyMaker
from policies.reported_load import Report, ReportedLoadRoundRobin
from policies.smooth_round_robin import SmoothRoundRobin

FACTS = RequestFacts(region="x")
TURNS = [SmoothRoundRobin, EdfRoundRobin, ReportedLoadRoundRobin]


def members(weights: Sequence[float]) -> list[Endpoint]:
    return [Endpoint(str(i), "http://x", "x", weight) for i, weight in enumerate(weights)]


def router(make: PolicyMaker, weights: list[float], seed: int = 11) -> Router:
    return Router(members(weights), make(Random(seed)), ManualClock(), Random(12))


def picks(r: Router, times: int) -> list[int]:
    return [int(r.route(FACTS).endpoint.id) for _ in range(times)]


def answer(r: Router, name: str, load: ReportedLoad | None, kind: OutcomeKind = OutcomeKind.OK) -> None:
    """The policy hears of one answer, now."""
    now = r._now()
    observe = getattr(r.policy, "observe")  # noqa: B009  an optional hook
    observe(r.find(name), Outcome(kind, 200, now, now, now, reported_load=load), now)


def furthest(taken: list[int], weights: list[float]) -> float:
    """The largest excess or lack of anybody, in requests, over any stretch."""
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
def test_turns_are_as_many_as_the_weights_say(make: PolicyMaker, weights: list[float]) -> None:
    """After any number of picks nobody is two requests from its share, from any start."""
    for seed in range(10):
        assert furthest(picks(router(make, weights, seed), 500), weights) < 2.0


@pytest.mark.parametrize("weights", [[5.0, 1.0, 1.0], [10.0, 1.0, 1.0, 1.0, 1.0, 1.0], [100.0, 1.0, 1.0]])
def test_smooth_turns_are_interleaved_as_much_as_can_be(weights: list[float]) -> None:
    """nginx's own order for 5, 1, 1, however it begins: a b a c and three a; light ones are never neighbours where
    the heavy one has enough turns to part them."""
    for seed in range(20):
        taken = picks(router(SmoothRoundRobin, weights, seed), 4 * int(sum(weights)))[int(sum(weights)) :]
        lights = [n for n, picked in enumerate(taken) if picked]
        apart = [b - a for a, b in pairwise(lights)]
        assert min(apart) >= (2 if weights[0] < 100 else 34)
        assert taken[: int(sum(weights))] == taken[int(sum(weights)) : 2 * int(sum(weights))]


def test_smooth_credit_adds_up_to_nothing() -> None:
    """Whoever comes, goes or flips: a newcomer neither has to wait for everybody nor gets a round of its own."""
    r = router(SmoothRoundRobin, [1, 2, 3, 4])
    policy = r.policy
    assert isinstance(policy, SmoothRoundRobin)
    rng = Random(3)
    for n in range(60):
        r.replace(members([1, 2, 3, 4, 5, 6][: rng.randrange(2, 7)]))
        r.set_healthy("0", rng.random() < 0.5)
        picks(r, n)
        assert sum(policy._credit.values()) == pytest.approx(0.0, abs=1e-6)
        assert max(map(abs, policy._credit.values())) <= 21


@pytest.mark.parametrize("make", TURNS)
def test_who_is_away_does_not_catch_up(make: PolicyMaker) -> None:
    """The others share its turns, and afterwards it has its own again and no more."""
    r = router(make, [1, 1, 2])
    picks(r, 40)
    r.set_healthy("2", False)
    gone = Counter(picks(r, 40))
    assert (gone[0], gone[1], gone[2]) == (20, 20, 0)
    r.set_healthy("2", True)
    back = Counter(picks(r, 40))
    assert [back[i] for i in range(3)] == pytest.approx([10, 10, 20], abs=2)


@pytest.mark.parametrize("make", TURNS)
def test_a_retry_goes_elsewhere(make: PolicyMaker) -> None:
    """Who was tried is passed over while there are others, and taken where there are none."""
    r = router(make, [1, 1, 1])
    for _ in range(20):
        assert r.route(RequestFacts(tried=frozenset("02"))).endpoint.id == "1"
    assert r.route(RequestFacts(tried=frozenset("012"))).endpoint.id in "012"
    assert (r.fallback_picks, r.last_fault) == (0, None)


def test_edf_begins_anywhere_and_goes_on_after_a_rebuild() -> None:
    """The heaviest is first in proportion to its weight only. A rebuild, as every change of a weight is, changes
    nobody's turn."""
    firsts = Counter(picks(router(EdfRoundRobin, [4, 1, 1, 1, 1], seed), 1)[0] for seed in range(400))
    assert firsts[0] / 400 == pytest.approx(0.62, abs=0.08)  # P(u/4 is the least of u/4 and four u) = 0.62
    r, undisturbed = router(EdfRoundRobin, [4, 1, 1]), router(EdfRoundRobin, [4, 1, 1])
    taken = []
    for _ in range(30):
        taken += picks(r, 1)
        r.replace(members([4, 1, 1]))
    assert taken == picks(undisturbed, 30)


def test_edf_finds_somebody_where_most_are_away() -> None:
    """Two of a thousand: it does not look at all of the others, and weights count."""
    r = router(EdfRoundRobin, [1.0] * 998 + [1.0, 3.0])
    for i in range(998):
        r.set_healthy(str(i), False)
    seen = Counter(picks(r, 2000))
    assert seen[999] / 2000 == pytest.approx(0.75, abs=0.04)


# --- by reports


def report(
    policy: ReportedLoadRoundRobin, r: Router, loads: dict[str, float], rates: dict[str, int], seconds: int
) -> None:
    """For so long, each endpoint answers so often a second and says how busy it is."""
    clock: ManualClock = r._now.__self__  # type: ignore[attr-defined]
    for _ in range(seconds * 10):
        clock.time += 0.1
        for name, rate in rates.items():
            for _ in range(rate // 10):
                answer(r, name, ReportedLoad(utilization=loads[name]) if name in loads else None)
        policy.tick(clock.time)


def by_reports(**options: float) -> tuple[ReportedLoadRoundRobin, Router]:
    r = router(lambda rng: ReportedLoadRoundRobin(rng, **options), [1, 1, 1])
    assert isinstance(r.policy, ReportedLoadRoundRobin)
    return r.policy, r


def test_the_weight_is_that_of_the_grfc() -> None:
    """w = qps/(utilisation + eps/qps × penalty): 20 a second, busy 0.5, every tenth an error: 20/(0.5 + 0.1 × 2)."""
    report = Report()
    for n in range(3000):
        report.count(n % 10 == 0, n * 0.05)
        report.hear(ReportedLoad(utilization=0.5), n * 0.05, 180.0)
    assert report.weight(150.0, 10.0, 180.0, 2.0) == pytest.approx(20 / (0.5 + 0.1 * 2), rel=0.03)
    assert report.weight(150.0, 10.0, 180.0, 0.0) == pytest.approx(20 / 0.5, rel=0.03)


def test_nothing_is_told_before_the_blackout_is_over_nor_after_the_expiry() -> None:
    """Reports count after 10 s of them, the last one for 180 s, and then there is a blackout again."""
    report = Report()
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


def test_shares_follow_what_each_serves_per_utilisation() -> None:
    """The same rate at half the utilisation: twice the requests. Who does not report takes the mean of the others."""
    policy, r = by_reports()
    report(policy, r, {"0": 0.25, "1": 0.5}, {"0": 20, "1": 20, "2": 20}, 15)
    assert policy._weights[r.find("0")] == pytest.approx(80, rel=0.05)
    assert policy._weights[r.find("2")] == pytest.approx(60, rel=0.05)
    seen = Counter(picks(r, 900))
    assert [seen[i] for i in range(3)] == pytest.approx([400, 200, 300], abs=12)


@pytest.mark.parametrize("loads", [{}, {"0": 0.2}])
def test_fewer_than_two_reports_are_none(loads: dict[str, float]) -> None:
    """All take turns as configured."""
    policy, r = by_reports()
    report(policy, r, loads, {"0": 20, "1": 20, "2": 20}, 15)
    assert set(policy._weights.values()) == {1.0}


def test_weights_are_renewed_once_per_update() -> None:
    """Not with every report: a rebuild costs a look at all."""
    policy, r = by_reports(update=5.0)
    report(policy, r, {"0": 0.25, "1": 0.5}, {"0": 20, "1": 20}, 13)
    before = policy._weights
    policy.tick(r._now() + 1.0)
    assert policy._weights is before
    policy.tick(r._now() + 5.0)
    assert policy._weights is not before


def test_probes_may_bring_reports() -> None:
    """Out of band as well as with responses."""
    policy, r = by_reports()
    policy.observe_probe(r.find("0"), ReportedLoad(utilization=0.7), 0.01, 5.0)
    assert policy._reports[r.find("0")].utilization == 0.7


# --- the line of idle ones


def jiq(count: int = 4) -> Router:
    return router(JoinIdleQueue, [1.0] * count)


def test_idle_ones_are_found_and_served_in_the_order_of_becoming_idle() -> None:
    """As many requests as endpoints: each has one. Who is done first is next."""
    r = jiq()
    held = {a.endpoint.id: a for a in (r.route(FACTS) for _ in range(4))}
    assert len(held) == 4
    for name in "203":
        r.settle(held[name], Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
    assert picks(r, 3) == [2, 0, 3]


def test_at_random_where_nobody_is_idle() -> None:
    """All are busy: weights decide, load does not."""
    r = router(JoinIdleQueue, [1, 3])
    picks(r, 2)
    seen = Counter(picks(r, 2000))
    assert seen[1] / 2000 == pytest.approx(0.75, abs=0.04)


def test_who_comes_back_idle_is_in_line_at_once() -> None:
    """It was away when its turn came, or became idle while it was away; either way the next request is its own."""
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


def test_the_line_holds_each_once_and_members_only() -> None:
    """Through any flips, comings and goings; and an idle one is always taken before a busy one."""
    r, rng = jiq(8), Random(5)
    policy = r.policy
    assert isinstance(policy, JoinIdleQueue)
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
        assert not policy._line.keys() & policy._aside.keys()
        assert policy._line.keys() | policy._aside.keys() <= set(r.states)


def test_quick_failures_do_not_stand_in_line() -> None:
    """Whoever fails is idle at once; it is not taken before others that are idle, except for a look now and then."""
    r = jiq(3)
    for _ in range(30):
        assignment = r.route(FACTS)
        kind = OutcomeKind.RESET if assignment.endpoint.id == "0" else OutcomeKind.OK
        r.settle(assignment, Outcome(kind, 200, 0.0, 0.001, 0.001))
    assert r.find("0").failures == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": -1.0}, "penalty: must be >= 0, got -1.0"),
        ({"blackout": -1.0}, "blackout: must be >= 0, got -1.0"),
        ({"expiry": 0.0}, "expiry: must be > 0, got 0.0"),
        ({"update": 0.0}, "update: must be >= 0.1, got 0.0"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    """One line that says what is allowed."""
    with pytest.raises(BadPolicyOption, match=f"^{message}$"):
        ReportedLoadRoundRobin(Random(1), **options)


def _is_policy(policy: Policy) -> EndpointState | None:
    """mypy holds each class to the protocol here."""
    return None


_is_policy(SmoothRoundRobin(Random(1)))
_is_policy(EdfRoundRobin(Random(1)))
_is_policy(ReportedLoadRoundRobin(Random(1)))
_is_policy(JoinIdleQueue(Random(1)))
