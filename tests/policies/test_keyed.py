"""Consistent hashing: stable placement, minimal movement, and loads as even and as weighted as documented."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import ceil
from random import Random
from typing import Any

import pytest

from policies import Endpoint, Policy, RequestFacts, Router, SlowStart, make
from policies.algorithms.maglev import is_prime
from policies.contract import ManualClock, Trial, endpoints
from policies.health.health import Health
from policies.routing.affinity import ByRendezvous, Sticky
from policies.selection import hashing
from tests.support.traces import traced

KEYED = ("ring-hash", "maglev", "rendezvous")
AFFINITY = "session affinity"
"""Around a policy that ignores keys; its placement has the properties of rendezvous hashing."""

PLACING = (*KEYED, AFFINITY)
KEYS = [f"user-{number}" for number in range(2000)]


def router(name: str, weights: list[float], **options: Any) -> Router:
    """Endpoints "here-0", "here-1", … of these weights."""
    return Router(endpoints(*weights), placing(name, 1, **options), ManualClock(), Random(1))


def placing(name: str, seed: int, **options: Any) -> Policy:
    if name == AFFINITY:
        return Sticky(make("random", {}, Random(seed)), ByRendezvous())
    return make(name, options, Random(seed))


def place(router: Router, key: str | None, tried: frozenset[str] = frozenset()) -> str:
    """The endpoint of one more request, without counting it in."""
    facts = RequestFacts(key=key, tried=tried)
    available = router.available.without(tried) if tried else router.available
    return router.policy.pick(facts, available, 0.0).id


def places(router: Router) -> dict[str, str]:
    return {key: place(router, key) for key in KEYS}


def moved(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The keys whose endpoint differs."""
    return [key for key in KEYS if before[key] != after[key]]


@pytest.mark.parametrize("name", PLACING)
def test_placement_is_independent_of_seed_and_order(name: str) -> None:
    """Two balancers with the same endpoints, listed in another order."""
    members = endpoints(1, 2, 1, 3)
    one, other = (
        Router(listed, placing(name, seed), ManualClock(), Random(seed))
        for seed, listed in ((1, members), (2, members[::-1]))
    )
    assert places(one) == places(other)


@pytest.mark.parametrize("name", PLACING)
def test_unhealthy_endpoint_loses_only_its_own_keys(name: str) -> None:
    """They are spread over all others, and return when it does."""
    r = router(name, [1] * 10)
    before = places(r)
    r.set_healthy("here-3", False)
    during = places(r)
    assert {before[key] for key in moved(before, during)} == {"here-3"}
    assert len(moved(before, during)) == list(before.values()).count("here-3")
    took = Counter(during[key] for key in moved(before, during))
    assert len(took) == 9
    assert max(took.values()) <= 3 * sum(took.values()) / 9
    r.set_healthy("here-3", True)
    assert places(r) == before


@pytest.mark.parametrize(
    ("name", "others"), [("ring-hash", 0.0), ("rendezvous", 0.0), (AFFINITY, 0.0), ("maglev", 0.01)]
)
def test_removal_moves_one_in_n(name: str, others: float) -> None:
    """A tenth of the keys (Maglev: few more); an added endpoint takes a tenth again."""
    r = router(name, [1] * 10)
    before = places(r)
    r.replace(endpoints(*[1] * 9))
    after = places(r)
    must = {key for key in KEYS if before[key] == "here-9"}
    went = set(moved(before, after))
    assert must <= went
    assert len(went - must) <= others * len(KEYS)
    assert len(must) / len(KEYS) == pytest.approx(0.1, abs=0.03)
    r.replace(endpoints(*[1] * 10))
    assert places(r) == before


@pytest.mark.parametrize(("name", "spread"), [("ring-hash", 0.16), ("maglev", 0.05), ("rendezvous", 0.09)])
def test_keys_are_spread_evenly(name: str, spread: float) -> None:
    """Each of twenty equal endpoints owns its part of all hashes, within three deviations of theory."""
    policy: Any = router(name, [1] * 20).policy
    owned = Counter(policy.owner(hashing.mixed(number)).id for number in range(40_000))
    assert len(owned) == 20
    assert max(owned.values()) / 2000 <= 1 + spread
    assert min(owned.values()) / 2000 >= 1 - spread


@pytest.mark.parametrize("name", PLACING)
def test_keys_are_spread_by_weight(name: str) -> None:
    """1 : 2 : 5, within 3 % of all."""
    seen = Counter(places(router(name, [1, 2, 5])).values())
    for at, weight in enumerate((1, 2, 5)):
        assert seen[f"here-{at}"] / len(KEYS) == pytest.approx(weight / 8, abs=0.03)


@pytest.mark.parametrize("name", PLACING)
def test_weight_change_moves_few_keys(name: str) -> None:
    """From 1 to 2 among five: keys move to it, from a fifth to a third, and none moves away."""
    r = router(name, [1] * 5)
    before = places(r)
    r.replace(endpoints(2, 1, 1, 1, 1))
    after = places(r)
    went = moved(before, after)
    astray = [key for key in went if after[key] != "here-0"]
    assert len(astray) <= (0.02 if name == "maglev" else 0.0) * len(KEYS)
    assert (len(went) - len(astray)) / len(KEYS) == pytest.approx(1 / 3 - 1 / 5, abs=0.05)


@pytest.mark.parametrize("name", PLACING)
def test_retry_goes_to_the_same_next_owner(name: str) -> None:
    """Which has cached what earlier retries left."""
    r = router(name, [1] * 5)
    for key in KEYS[:50]:
        first = place(r, key)
        second = place(r, key, frozenset([first]))
        assert second != first
        assert second == place(r, key, frozenset([first]))
        r.set_healthy(first, False)
        assert place(r, key) == second
        r.set_healthy(first, True)
        assert place(r, key, frozenset(f"here-{i}" for i in range(5))) in {f"here-{i}" for i in range(5)}


@pytest.mark.parametrize("name", KEYED)
def test_slow_start_moves_keys_gradually(name: str) -> None:
    """Only to the new endpoint, more and more, and none back."""
    clock, health = ManualClock(), Health(Random(1), slow_start=SlowStart(window=10.0))
    r = Router(endpoints(*[1] * 4), make(name, {}, Random(1)), clock, Random(1), health=health)
    before = places(r)
    r.replace(endpoints(*[1] * 5))
    has: list[set[str]] = []
    for _ in range(11):
        now = places(r)
        has.append({key for key in KEYS if now[key] == "here-4"})
        clock.time += 1.0
        r.tick()
    assert all(earlier <= later for earlier, later in pairwise(has))
    assert len(has[0]) <= 0.15 * len(has[-1])
    assert len(has[4]) == pytest.approx(0.4 * len(has[-1]), rel=0.3)
    assert len(has[-1]) / len(KEYS) == pytest.approx(0.2, abs=0.05)
    stays = 0.01 if name == "maglev" else 0.0
    assert len([key for key in moved(before, places(r)) if key not in has[-1]]) <= stays * len(KEYS)


@pytest.mark.parametrize("name", KEYED)
def test_without_a_key_two_choices_decide(name: str) -> None:
    r = router(name, [1, 1])
    r.find("here-0").in_flight = 9
    assert {place(r, None) for _ in range(50)} == {"here-1"}


@pytest.mark.parametrize("name", KEYED)
def test_load_bound_spreads_a_hot_key(name: str) -> None:
    """No endpoint has more than 1.25 times its part, rounded up; without the bound one has all."""
    for bound, most in ((0.0, 1000), (1.25, ceil(1.25 * 1000 / 10)), (2.0, 200)):
        r = router(name, [1] * 10, load_bound=bound)
        for _ in range(1000):
            r.route(RequestFacts(key="the same"))
        assert max(state.in_flight for state in r.states) == most


@pytest.mark.parametrize("name", KEYED)
def test_unreached_load_bound_moves_few_keys(name: str) -> None:
    free, bound = router(name, [1] * 5), router(name, [1] * 5, load_bound=2.0)
    same = 0
    for key in KEYS[:1000]:
        assignment = bound.route(RequestFacts(key=key))
        same += assignment.state.id == place(free, key)
    assert same >= 950


def test_load_bound_counts_earlier_requests_and_those_of_siblings() -> None:
    """Also when the policy is replaced while requests are in flight."""
    r = router("random", [1] * 4)
    for _ in range(400):
        r.route(RequestFacts())
    r.set_policy(make("maglev", {"load_bound": 1.25}, Random(1)))
    for _ in range(400):
        r.route(RequestFacts(key="the same"))
    assert max(state.in_flight for state in r.states) <= ceil(1.25 * 800 / 4)
    for state in r.states:
        state.update_elsewhere(1000, 0.0)
    r.tick()
    owner = r.route(RequestFacts(key="the same")).state
    assert owner.id == place(router("maglev", [1] * 4), "the same")


@pytest.mark.parametrize("name", KEYED)
def test_reasons(name: str) -> None:
    """The owner; the next owner and those passed over; no key."""
    r = router(name, [1] * 5)
    trace = traced(r, keep=3)
    owner = r.route(RequestFacts(key="a")).state
    r.set_enabled(owner.id, False)
    second = r.route(RequestFacts(key="a")).state
    r.route(RequestFacts())
    first, other, none = trace.recent
    assert first.reasons == ("owner",)
    assert other.reasons == ("next-owner",)
    assert other.steps[0].candidates[0] is owner
    assert other.steps[0].candidates[-1] is second
    assert none.reasons[0] == "no-key"


@pytest.mark.parametrize("name", KEYED)
def test_single_available_endpoint_gets_all_keys(name: str) -> None:
    """Even if a walk of the table does not find it."""
    r = router(name, [1] * 50)
    for at in range(49):
        r.set_enabled(f"here-{at}", False)
    assert set(places(r).values()) == {"here-49"}
    assert r.fallback_picks == 0


@pytest.mark.parametrize("name", KEYED)
def test_load_bound_holds_while_endpoints_come_and_go(name: str) -> None:
    """No unavailable endpoint is picked, and the count of requests in flight stays exact."""
    trial = Trial(lambda rng: make(name, {"load_bound": 1.25}, rng), endpoints(1, 2, 3, 1))
    rng = Random(3)
    for step in range(200):
        trial.facts = RequestFacts(key=f"user-{rng.randrange(50)}")
        trial.router.set_healthy(f"here-{rng.randrange(1, 4)}", rng.random() < 0.5)
        if step % 40 == 0:
            trial.router.replace(endpoints(*[1, 2, 3, 1, 1][: 4 + step // 40 % 2]))
        trial.open_loop(100, 0.1)
    assert trial.router.fallback_picks == 0
    states = trial.router.states
    for state in states:
        trial.router.set_healthy(state.id, True)
    for _ in range(1000):
        trial.router.route(RequestFacts(key="the same"))
    total = sum(state.in_flight for state in states)
    weights = sum(state.endpoint.weight for state in states)
    heaviest = max(states, key=lambda state: state.in_flight / state.endpoint.weight)
    assert heaviest.in_flight == ceil(1.25 * total * heaviest.endpoint.weight / weights)


def test_key_hashes_are_fixed_and_uniform() -> None:
    """Another hash would move every key of every installation."""
    assert hashing.of_key("user-1") == 16559112875182747556
    assert hashing.several("a", 12)[:3] == hashing.several("a", 3)
    for form in ("user-{}", "10.0.0.{}", "/item/{:08}/detail"):
        seen = Counter(hashing.of_key(key) >> 60 for key in map(form.format, range(4000)))
        assert sum((seen[at] - 250) ** 2 / 250 for at in range(16)) < 45


def test_primes() -> None:
    assert [number for number in range(20) if is_prime(number)] == [2, 3, 5, 7, 11, 13, 17, 19]


def test_ring_hash_as_inner_policy() -> None:
    members = [Endpoint(f"{region}{i}", "http://x", region) for region in ("emea", "us") for i in range(4)]
    policy = make("region-aware", {"inner": "ring-hash"}, Random(1))
    r = Router(members, policy, ManualClock(), Random(1))
    seen = {r.route(RequestFacts(key="k", region="emea")).state.id for _ in range(3)}
    assert len(seen) == 1
    assert r.fallback_picks == 0
