"""Deterministic aperture: few endpoints per balancer, and the same load on each endpoint."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from policies import RequestFacts, Router, make
from policies.algorithms.aperture import Aperture
from policies.contract import ManualClock, Trial, endpoints
from tests.support.traces import last, traced


def router(weights: list[float], **options: Any) -> Router:
    """One balancer of several."""
    rng = Random(options.get("index", 0))
    return Router(endpoints(*weights), make("aperture", options, rng), ManualClock(), rng)


def window(router: Router) -> set[str]:
    """Ids of the endpoints that it sends to, after one pick."""
    policy = router.policy
    assert isinstance(policy, Aperture)
    policy.pick(RequestFacts(), router.available, 0.0)
    return {state.id for state in policy.window}


def balancers_of(weights: list[float], balancers: int, **options: Any) -> list[Router]:
    return [router(weights, balancers=balancers, index=index, **options) for index in range(balancers)]


def test_100_endpoints_and_10_balancers_need_200_connections() -> None:
    """Without windows it would be 1000."""
    assert sum(len(window(balancer)) for balancer in balancers_of([1] * 100, 10)) == 200


@pytest.mark.parametrize(
    ("weights", "balancers"),
    [
        ([1.0] * 100, 10),
        ([1.0] * 7, 3),
        ([1.0] * 50, 4),
        ([1.0] * 13, 40),
        ([1.0] * 5, 2),
        ([1.0] * 60, 7),
        ([1.0, 2.0, 3.0] * 20, 7),
    ],
)
def test_load_of_all_balancers_follows_weights(weights: list[float], balancers: int) -> None:
    """Windows are not too small, and cover each endpoint equally; each balancer counts only its own requests."""
    got: Counter[str] = Counter()
    for balancer in balancers_of(weights, balancers):
        assert len(window(balancer)) >= min(12, len(weights))
        for _ in range(42_000 // balancers):
            got[balancer.route(RequestFacts()).state.id] += 1
    for at, weight in enumerate(weights):
        assert got[f"here-{at}"] / got.total() == pytest.approx(weight / sum(weights), rel=0.1)


def test_window_of_a_single_balancer_is_the_whole_set() -> None:
    assert len(window(router([1] * 40))) == 40


def test_sibling_processes_divide_the_window() -> None:
    """Two processes use disjoint endpoints, together those of one balancer."""
    seen = []
    for part in range(2):
        r = router([1] * 100)
        for state in r.states:
            state.set_process(part, 2)
        seen.append(window(r))
    assert [len(one) for one in seen] == [50, 50]
    assert not seen[0] & seen[1]


def test_unavailable_endpoint_is_replaced_by_the_next_beyond_the_window() -> None:
    """It has its place again when it returns."""
    r = router([1] * 100, balancers=10, index=3)
    before = window(r)
    gone = sorted(before)[5]
    r.set_healthy(gone, False)
    during = window(r)
    assert before - during == {gone}
    assert len(during) == len(before)
    r.set_healthy(gone, True)
    assert window(r) == before


def test_added_endpoint_changes_few_of_each_window() -> None:
    """One in a hundred more: at most 4 of the twenty endpoints of a window change."""
    for balancer in balancers_of([1] * 100, 10):
        before = window(balancer)
        balancer.replace(endpoints(*[1] * 101))
        assert len(window(balancer) - before) <= 4


def test_less_loaded_of_two_is_picked() -> None:
    """The two are always different endpoints."""
    r = router([1] * 2)
    trace = traced(r)
    r.find("here-0").in_flight = 9
    assert {r.policy.pick(RequestFacts(), r.available, 0.0).id for _ in range(100)} == {"here-1"}
    assert trace.counts["less-loaded"] == 100


def test_retry_leaves_the_window_only_when_all_of_it_was_tried() -> None:
    r = router([1] * 40, balancers=10, index=2)
    trace = traced(r)
    in_window = window(r)
    some = frozenset(list(in_window)[:4])
    assert r.route(RequestFacts(tried=some, attempt=1)).state.id in in_window - some
    assert r.route(RequestFacts(tried=frozenset(in_window), attempt=1)).state.id not in in_window
    assert last(trace).reasons[0] == "outside-window"


def test_single_available_endpoint_is_picked_outside_the_window() -> None:
    r = router([1] * 40, balancers=10, index=7)
    for at in range(39):
        r.set_enabled(f"here-{at}", False)
    assert {r.route(RequestFacts()).state.id for _ in range(20)} == {"here-39"}
    assert r.fallback_picks == 0


def test_window_follows_swaps_of_equal_count() -> None:
    """One endpoint returns as another becomes unavailable: none that is unavailable is picked."""
    trial = Trial(
        lambda rng: make("aperture", {"balancers": 4, "index": 1, "width": 3}, rng), endpoints(*[1] * 12)
    )
    out = 0
    for step in range(1, 200):
        trial.router.set_healthy(f"here-{out}", True)
        out = step % 12
        trial.router.set_healthy(f"here-{out}", False)
        trial.open_loop(200, 0.05)
    assert trial.router.fallback_picks == 0
    trial.router.set_healthy(f"here-{out}", True)
    picked = trial.picked(since=trial.clock.time - 1)
    assert set(picked) < {f"here-{at}" for at in range(12)}
