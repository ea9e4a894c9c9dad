"""Priority levels: backups get what the levels before them cannot carry, with every policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from policies import Endpoint, EndpointState, Outcome, OutcomeKind, RequestFacts, Router, registry
from policies.contract import REGION, ManualClock, Trial
from policies.endpoint.available import AvailableByLevel
from policies.endpoint.ejection import EjectionRules
from policies.errors import NoEndpointAvailable
from policies.facts import AdminState
from policies.health.health import Health
from policies.health.panic import Panic
from policies.health.priority_levels import Loads, loads_of
from policies.insight.explanation import BACKUP
from policies.policy import Policy
from tests.support.traces import traced

POLICIES = sorted(set(registry.describe()) - {"single-region"})
"""`single-region` keeps to its region, whatever happens to it."""


def members(*sizes: int, cap: int | None = None) -> list[Endpoint]:
    """Endpoints "a0", "a1", … of priority 0 in region a, "b0", … of priority 1, and so on."""
    return [
        Endpoint(f"{region}{at}", "http://x", region, max_in_flight=cap, priority=priority)
        for priority, (region, size) in enumerate(zip("abcd", sizes, strict=False))
        for at in range(size)
    ]


class Levels:
    """A router over levels of these sizes, whose requests are answered at once."""

    def __init__(
        self, *sizes: int, policy: Policy | str = "round-robin", panic: float = 0.5, cap: int | None = None
    ) -> None:
        self.clock = ManualClock()
        made = registry.make(policy, {}, Random(1)) if isinstance(policy, str) else policy
        health = Health(Random(1), ejection=EjectionRules(), panic=Panic(panic))
        self.router = Router(members(*sizes, cap=cap), made, self.clock, Random(1), health=health)

    def fails(self, *names: str) -> None:
        for name in names:
            self.router.set_healthy(name, False)

    def recovers(self, *names: str) -> None:
        for name in names:
            self.router.set_healthy(name, True)

    def ask(self, number: int, tried: frozenset[str] = frozenset()) -> Counter[str]:
        """Send requests with keys of their own from region a; returns how many went to each level, by its letter."""
        counts: Counter[str] = Counter()
        for at in range(number):
            facts = RequestFacts(region="a", key=f"key-{at}", path=f"/{at}", tried=tried)
            assignment = self.router.route(facts)
            counts[assignment.state.id[0]] += 1
            self.clock.time += 0.01
            now = self.clock.time
            self.router.settle(assignment, Outcome(OutcomeKind.OK, 200, now - 0.01, now, now))
        return counts


@pytest.mark.parametrize(
    ("healthy", "loads"),
    [
        ({0: 1.0, 1: 1.0}, {0: 1.0}),
        ({0: 0.72, 1: 1.0}, {0: 1.0}),
        ({0: 0.5, 1: 1.0}, {0: 0.7, 1: 0.3}),
        ({0: 0.25, 1: 1.0}, {0: 0.35, 1: 0.65}),
        ({0: 0.0, 1: 1.0}, {1: 1.0}),
        ({0: 0.25, 1: 0.25, 2: 1.0}, {0: 0.35, 1: 0.35, 2: 0.3}),
        ({0: 0.25, 1: 0.25}, {0: 0.5, 1: 0.5}),
        ({0: 0.2, 1: 0.2, 2: 0.1}, {0: 0.4, 1: 0.4, 2: 0.2}),
        ({3: 0.5, 7: 1.0}, {3: 0.7, 7: 0.3}),
        ({0: 0.0, 1: 0.0}, {}),
    ],
)
def test_loads(healthy: dict[int, float], loads: Loads) -> None:
    """Those of Envoy's documentation, among others."""
    found = loads_of(healthy, 1.4)
    assert found.keys() == loads.keys()
    assert [*found.values()] == pytest.approx([*loads.values()])


def test_overprovisioning() -> None:
    assert loads_of({0: 0.5, 1: 1.0}, 1.0) == pytest.approx({0: 0.5, 1: 0.5})
    assert loads_of({0: 0.5, 1: 1.0}, 2.0) == {0: 1.0}


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_keeps_to_the_levels(policy: str) -> None:
    """All to the first, a part to the second as the first fails, all to it, and back; without a fallback pick."""
    levels = Levels(4, 2, 1, policy=policy)
    assert levels.ask(100) == {"a": 100}
    levels.fails("a0")
    assert levels.ask(100) == {"a": 100}
    levels.fails("a1")
    assert levels.ask(100) == {"a": 70, "b": 30}
    levels.fails("a2", "a3")
    assert levels.ask(100) == {"b": 100}
    levels.fails("b0")
    assert levels.ask(100) == {"b": 70, "c": 30}
    levels.recovers("a0", "a1", "a2", "a3")
    assert levels.ask(100) == {"a": 100}
    assert levels.router.fallback_picks == 0, levels.router.last_fault


def two_levels(policy: str, weights: Sequence[float], regions: Sequence[str] = (REGION,)) -> Trial:
    """Levels a and b of endpoints with these weights, in these regions by turns, of 15 to 25 ms per request; the first
    two of level a are unhealthy, or what is half of its endpoints."""
    rng = Random(5)

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        return rng.uniform(0.015, 0.025), OutcomeKind.OK

    trial = Trial(
        lambda made_with: registry.from_spec(policy, made_with),
        [
            Endpoint(f"{level}{at}", "http://x", regions[at % len(regions)], weight, priority=priority)
            for priority, level in enumerate("ab")
            for at, weight in enumerate(weights)
        ],
        answer,
        health=Health(Random(1), panic=Panic(0.1)),
    )
    for at in range(len(weights) // 2):
        trial.router.set_healthy(f"a{at}", False)
    return trial


UNEVEN = {"c3": 0.5, "prequal": 0.5, "least-time": 1.0}
"""Policies that prefer endpoints that were quicker lately, also without levels, and how far from even they may be."""


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_shares_the_load_of_each_level(policy: str) -> None:
    """No endpoint of a level gets a quarter more or less than its share, whatever the other level gets in between."""
    trial = two_levels(policy, [1.0] * 4)
    trial.open_loop(100, 40)
    picked = trial.picked()
    assert sum(picked[f"b{at}"] for at in range(4)) == pytest.approx(0.3 * picked.total(), abs=2)
    for level, healthy in (("a", (2, 3)), ("b", (0, 1, 2, 3))):
        counts = [picked[f"{level}{at}"] for at in healthy]
        even = [sum(counts) / len(counts)] * len(counts)
        assert counts == pytest.approx(even, rel=UNEVEN.get(policy, 0.25))
        assert min(counts) > 0
    assert trial.router.last_fault is None


TURNS = ("round-robin", "smooth-round-robin", "edf-round-robin", "reported-load", "region-round-robin")


@pytest.mark.parametrize("tried", [frozenset[str](), frozenset({"b1"})], ids=["first try", "some retried"])
@pytest.mark.parametrize("weights", [[1.0] * 4, [1.0, 1.0, 1.0, 3.0], [1.0, 1.0, 2.0, 3.0]], ids=str)
@pytest.mark.parametrize("policy", TURNS)
def test_turns_of_each_level_follow_weights(policy: str, weights: list[float], tried: frozenset[str]) -> None:
    """Exactly; every seventh request has failed at `tried`, which loses the turns that would fall to it then."""
    trial = two_levels(policy, weights)
    kept, retried = trial.facts, RequestFacts(region=REGION, tried=tried)
    for at in range(1200):
        trial.facts = retried if at % 7 == 3 else kept
        trial.send()
    picked = trial.picked()
    lost = len(tried)
    for level, healthy in (("a", (2, 3)), ("b", (0, 2, 3))):
        in_turn = {at: picked[f"{level}{at}"] / weights[at] for at in healthy}
        mean = sum(in_turn.values()) / len(in_turn)
        assert [*in_turn.values()] == pytest.approx([mean] * len(in_turn), abs=2 + 4 * lost)
    assert lost or picked["b1"] == pytest.approx(picked["b0"], abs=2)


def test_regions_of_each_level_have_their_turns() -> None:
    """Both regions of level a and both of level b, and all endpoints of each, although two of a are unhealthy."""
    trial = two_levels("region-round-robin", [1.0] * 8, regions=(REGION, REGION, "there"))
    for _ in range(1000):
        trial.send()
    picked = trial.picked()
    assert picked["a5"] == pytest.approx(350, abs=2)  # alone in its region
    assert [picked[f"a{at}"] for at in (4, 6, 7)] == pytest.approx([350 / 3] * 3, abs=2)
    assert [picked[f"b{at}"] for at in (2, 5)] == pytest.approx([75] * 2, abs=2)
    assert [picked[f"b{at}"] for at in (0, 1, 3, 4, 6, 7)] == pytest.approx([25] * 6, abs=2)


def test_idle_endpoints_keep_their_places_while_another_level_is_asked() -> None:
    """Join-idle-queue, with as many endpoints in both levels: each level goes to the one that has been idle longest."""
    trial = two_levels("join-idle-queue", [1.0] * 8)
    for at in range(4):
        trial.router.set_healthy(f"b{at}", False)
    picked = [trial.send().id for _ in range(14)]
    for level in "ab":
        assert len({name for name in picked if name[0] == level}) == 4


def test_aperture_contains_an_endpoint_that_returns_while_levels_share_the_load() -> None:
    levels = Levels(4, 4, policy="aperture")
    levels.fails("a0")
    levels.ask(10)
    levels.fails("a1", "a2")
    levels.ask(10)
    levels.recovers("a0")
    levels.router.tick()
    asked = Counter(levels.router.route(RequestFacts(region="a")).state.id for _ in range(100))
    assert asked["a0"] == pytest.approx(35, abs=5)


def test_changed_loads_are_followed_without_a_new_list() -> None:
    levels = Levels(8, 1)
    for failed, share in ((3, 12.5), (4, 30), (5, 47.5), (6, 65)):
        levels.fails(*(f"a{at}" for at in range(failed)))
        assert levels.ask(200)["b"] == pytest.approx(2 * share, abs=1)


def test_draining_endpoints_are_missing_and_full_ones_are_not() -> None:
    router = Levels(2, 1, cap=1).router
    assert {router.route(RequestFacts()).state.id for _ in range(2)} == {"a0", "a1"}
    with pytest.raises(NoEndpointAvailable):
        router.route(RequestFacts())
    assert router.has_eligible
    router.set_admin_state("a0", AdminState.DRAIN)
    assert router.route(RequestFacts()).state.id == "b0"


def test_levels_that_have_room_take_the_requests_of_full_ones() -> None:
    """Where both get requests: nobody waits while an endpoint is free."""
    router = Levels(2, 1, cap=1).router
    router.set_healthy("a0", False)
    assert {router.route(RequestFacts()).state.id for _ in range(2)} == {"a1", "b0"}


def test_panic_only_if_all_levels_together_cannot_carry_the_load() -> None:
    """A first level that is gone is no panic; then health is ignored, and levels with it."""
    levels = Levels(4, 1)
    levels.fails("a0", "a1", "a2", "a3")
    assert levels.ask(10) == {"b": 10}
    assert not levels.router.health.panic
    levels.fails("b0")
    assert levels.router.health.panic
    assert levels.ask(10) == {"a": 8, "b": 2}
    levels.recovers("b0")
    assert not levels.router.health.panic
    assert levels.ask(10) == {"b": 10}


def test_levels_without_panic_share_what_is_left() -> None:
    levels = Levels(4, 4, panic=0.1)
    levels.fails("a0", "a1", "a2", "b0", "b1", "b2")
    assert levels.ask(100) == {"a": 50, "b": 50}


def test_members_and_priorities_change() -> None:
    levels = Levels(2, 1)
    router = levels.router
    router.put(Endpoint("c0", "http://x", "c", priority=1))
    assert levels.ask(10) == {"a": 10}
    router.put(Endpoint("c0", "http://x", "c", priority=0))
    assert levels.ask(9) == {"a": 6, "c": 3}
    router.drop("a0")
    router.drop("a1")
    assert levels.ask(4) == {"c": 4}
    router.set_healthy("c0", False)
    assert levels.ask(4) == {"b": 4}
    router.put(Endpoint("b1", "http://x", "b", priority=1))
    assert levels.ask(4) == {"b": 4}
    router.replace(members(1, 1))
    assert levels.ask(4) == {"a": 4}
    router.replace(members(0, 2))
    assert levels.ask(4) == {"b": 4}


def test_added_backup_gets_no_requests_while_the_first_level_carries_all() -> None:
    """Replaced, or put: the loads of the levels are the same as before."""
    levels = Levels(2, 1)
    levels.router.replace(members(2, 2))
    assert levels.ask(20) == {"a": 20}
    levels.router.put(Endpoint("b2", "http://x", "b", priority=1))
    assert levels.ask(20) == {"a": 20}


def test_room_in_a_backup_is_announced() -> None:
    """A request that waits for a full level is sent when another level is called."""
    router = Levels(2, 1, cap=1).router
    called: list[int] = []
    router.on_available = lambda: called.append(len(router.available))
    held = [router.route(RequestFacts()) for _ in range(2)]
    assert not router.has_room
    router.set_healthy("a0", False)
    assert (called, router.has_room) == ([1], True)
    assert all(assignment.state.id[0] == "a" for assignment in held)


def test_retry_stays_in_a_level_that_has_another_endpoint() -> None:
    levels = Levels(4, 2)
    levels.fails("a0", "a1")
    assert levels.ask(100, tried=frozenset({"a2"})) == {"a": 70, "b": 30}
    assert levels.ask(10, tried=frozenset({"a2", "a3"})) == {"b": 10}


def test_retry_goes_to_a_backup_if_no_other_endpoint_is_left() -> None:
    """Although health has not noticed anything yet. Further requests stay where they belong."""
    levels = Levels(2, 1, 1)
    both = frozenset({"a0", "a1"})
    assert levels.ask(3, tried=both) == {"b": 3}
    assert levels.ask(10) == {"a": 10}
    assert levels.ask(1, tried=both | {"b0"}) == {"c": 1}
    levels.router.tick()
    assert {state.id for state in levels.router.available} == both
    assert not levels.router.has_untried(both | {"b0", "c0"})
    assert levels.ask(2, tried=both | {"b0", "c0"}) == {"a": 2}


def test_no_list_by_level_while_one_level_gets_all_requests() -> None:
    levels = Levels(2, 2)
    assert not isinstance(levels.router.available, AvailableByLevel)
    levels.fails("a0")
    assert isinstance(levels.router.available, AvailableByLevel)
    levels.recovers("a0")
    assert not isinstance(levels.router.available, AvailableByLevel)


def test_explanation_of_a_backup() -> None:
    levels = Levels(2, 1)
    trace = traced(levels.router, keep=10)
    levels.fails("a0")
    levels.ask(10, tried=frozenset({"a0"}))
    assert trace.counts[BACKUP] == 3
    assert {explanation.facts.tried for explanation in trace.recent} == {frozenset({"a0"})}


@pytest.mark.parametrize("seed", range(20))
def test_lists_are_those_of_a_new_router_after_any_changes(seed: int) -> None:
    """Health, admin state, priorities and members change at random; a router that is built anew has the same lists."""
    rng = Random(seed)
    levels = Levels(3, 2, 2, panic=rng.choice([0.0, 0.5]))
    router = levels.router
    for _ in range(60):
        name = rng.choice([state.id for state in router.states] or ["a0"])
        kind = rng.randrange(5)
        if kind == 0:
            router.set_healthy(name, rng.random() < 0.5)
        elif kind == 1:
            router.set_enabled(name, rng.random() < 0.5)
        elif kind == 2 or len(router.states) < 3:
            router.put(Endpoint(f"a{rng.randrange(9)}", "http://x", "a", priority=rng.randrange(3)))
        elif kind == 3:
            router.drop(name)
        else:
            levels.clock.time += 1.0
            router.tick()
        fresh = Levels().router
        fresh.apply_health(Health(Random(1), panic=Panic(router.health.panic.share)))
        fresh.replace([state.endpoint for state in router.states])
        for state in router.states:
            fresh.set_healthy(state.id, state.passes_checks)
            fresh.set_enabled(state.id, state.enabled)
        assert [state.id for state in router.available] == [state.id for state in fresh.available]
        for state in router.states:
            assert state.is_selectable == (state in router.available)
        if isinstance(router.available, AvailableByLevel):
            for priority, states in router.available.by_priority.items():
                assert states == [state for state in router.available if state.endpoint.priority == priority]
