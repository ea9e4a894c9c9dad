"""Deterministic aperture: few endpoints for each balancer, and the same load for each endpoint."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

import pytest

from policies import Endpoint, RequestFacts, Router, Trace, make
from policies.aperture import Aperture
from policies.contract import ManualClock, Trial, endpoints


def router(weights: list[float], **options: Any) -> Router:
    """One balancer of several."""
    rng = Random(options.get("index", 0))
    return Router(endpoints(*weights), make("aperture", options, rng), ManualClock(), rng)


def window(router: Router) -> set[str]:
    """Whom it sends to, having been asked once."""
    policy = router.policy
    assert isinstance(policy, Aperture)
    policy.pick(RequestFacts(), router.available, 0.0)
    return {state.id for state in policy.window}


def crew(weights: list[float], balancers: int, **options: Any) -> list[Router]:
    """All of the balancers."""
    return [router(weights, balancers=balancers, index=index, **options) for index in range(balancers)]


@pytest.mark.parametrize(("endpoints_", "balancers"), [(100, 10), (7, 3), (50, 4), (13, 40), (5, 2)])
def test_windows_are_small_and_cover_everyone_alike(endpoints_: int, balancers: int) -> None:
    """Each endpoint is covered by the same part of windows, as far as it fits, and none is left out."""
    covered: dict[str, float] = defaultdict(float)
    for balancer in crew([1] * endpoints_, balancers):
        assert len(window(balancer)) >= min(12, endpoints_)
        policy = balancer.policy
        assert isinstance(policy, Aperture)
        for state, part in policy._window:
            covered[state.id] += part
    assert len(covered) == endpoints_
    assert max(covered.values()) == pytest.approx(min(covered.values()))


def test_a_hundred_endpoints_and_ten_balancers_need_two_hundred_connections() -> None:
    """Not a thousand."""
    assert sum(len(window(balancer)) for balancer in crew([1] * 100, 10)) == 200


@pytest.mark.parametrize("weights", [[1.0] * 60, [1.0, 2.0, 3.0] * 20])
def test_all_together_they_load_by_weight(weights: list[float]) -> None:
    """Each knows only what it has sent itself, and each endpoint gets what it weighs, whoever sees a part of it."""
    got: Counter[str] = Counter()
    for balancer in crew(weights, 7):
        for _ in range(6000):
            got[balancer.route(RequestFacts()).state.id] += 1
    total = got.total()
    for at, weight in enumerate(weights):
        assert got[f"here-{at}"] / total == pytest.approx(weight / sum(weights), rel=0.1)


def test_one_balancer_sees_all() -> None:
    """There is nobody to share them with."""
    assert len(window(router([1] * 40))) == 40


def test_processes_of_a_unit_share_its_place() -> None:
    """Two processes see different endpoints, together all."""
    seen = []
    for part in range(2):
        r = router([1] * 100)
        for state in r.states:
            state.set_process(part, 2)
        seen.append(window(r))
    assert [len(one) for one in seen] == [50, 50]
    assert not seen[0] & seen[1]


def test_a_flip_moves_the_far_end_only() -> None:
    """Who goes is made up for by the next one beyond, and gets its place back when it returns."""
    r = router([1] * 100, balancers=10, index=3)
    before = window(r)
    gone = sorted(before)[5]
    r.set_healthy(gone, False)
    during = window(r)
    assert before - during == {gone}
    assert len(during) == len(before)
    r.set_healthy(gone, True)
    assert window(r) == before


def test_who_joins_moves_windows_a_little() -> None:
    """One in a hundred more: nobody changes more than a few of the twenty that it sends to."""
    for balancer in crew([1] * 100, 10):
        before = window(balancer)
        balancer.replace(endpoints(*[1] * 101))
        assert len(window(balancer) - before) <= 4


def test_it_takes_the_less_loaded_and_says_so() -> None:
    """Two different ones, always."""
    r = router([1] * 2)
    trace = Trace()
    r.explain(trace)
    r.find("here-0").in_flight = 9
    assert {r.policy.pick(RequestFacts(), r.available, 0.0).id for _ in range(100)} == {"here-1"}
    assert trace.counts["less-loaded"] == 100


def test_a_retry_stays_in_the_window_while_it_can() -> None:
    """And leaves it when everyone there has been tried."""
    r = router([1] * 40, balancers=10, index=2)
    trace = Trace()
    r.explain(trace)
    inner_policies = window(r)
    some = frozenset(list(inner_policies)[:4])
    assert r.route(RequestFacts(tried=some, attempt=1)).state.id in inner_policies - some
    assert r.route(RequestFacts(tried=frozenset(inner_policies), attempt=1)).state.id not in inner_policies
    assert trace.last is not None
    assert trace.last.reasons[0] == "outside-window"


def test_everyone_ill_but_one() -> None:
    """Wherever on the circle that one is."""
    r = router([1] * 40, balancers=10, index=7)
    for at in range(39):
        r.set_enabled(f"here-{at}", False)
    assert {r.route(RequestFacts()).state.id for _ in range(20)} == {"here-39"}
    assert r.fallback_picks == 0


def test_swaps_between_two_picks_are_noticed() -> None:
    """One goes as another comes: as many as before, and still nobody who is gone is picked."""
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


def test_a_lone_endpoint_is_a_window() -> None:
    r = Router([Endpoint("a", "http://x", "emea")], make("aperture", {}, Random(1)), ManualClock(), Random(1))
    assert r.route(RequestFacts()).state.id == "a"
