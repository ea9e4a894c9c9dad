"""Changes of single endpoints: their cost, and when the policy is notified."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from policies import AdminState, Available, EndpointState, RequestFacts, Router, registry
from policies.contract import ManualClock, endpoints
from policies.errors import UnknownEndpoint
from policies.facts import Endpoint, Outcome, OutcomeKind
from policies.health.health import Health
from policies.health.panic import Panic
from policies.health.slow_start import SlowStart
from policies.routing.affinity import ByToken
from tests.support.expected_policies import maker
from tests.support.line_counts import growth

FACTS = RequestFacts(key="k")


class RecordingPolicy:
    """Picks the first, and records the members it was notified of; each notification takes `seconds`."""

    def __init__(self, clock: ManualClock, seconds: float = 0.0) -> None:
        self.notified: list[list[str]] = []
        self._clock = clock
        self._seconds = seconds

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self.notified.append([state.id for state in states])
        self._clock.time += self._seconds

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[0]


def recording_router(seconds: float = 0.0) -> tuple[Router, RecordingPolicy, ManualClock]:
    clock = ManualClock()
    policy = RecordingPolicy(clock, seconds)
    router = Router(endpoints(1), policy, clock, Random(1))
    policy.notified.clear()
    return router, policy, clock


def new(number: int) -> Endpoint:
    return Endpoint(f"new-{number}", f"http://new-{number}", "r", 1.0)


def test_policy_is_notified_once_of_all_changes_before_its_next_pick() -> None:
    router, policy, _ = recording_router()
    for number in range(3):
        router.put(new(number))
    router.drop("new-1")
    assert policy.notified == []
    for _ in range(2):
        router.route(FACTS)
    assert policy.notified == [["here-0", "new-0", "new-2"]]


def test_tick_notifies_of_changes() -> None:
    """Without requests there is no pick."""
    router, policy, _ = recording_router()
    router.put(new(0))
    router.tick()
    assert policy.notified == [["here-0", "new-0"]]


def test_slow_notifications_are_batched() -> None:
    """A table that takes 70 ms to fill takes a tenth of the time, however many endpoints change."""
    router, policy, clock = recording_router(seconds=0.07)
    router.put(new(0))
    began = clock.time
    for number in range(1, 1000):
        router.route(FACTS)
        router.put(new(number))
        clock.time += 0.002
    taken = clock.time - began
    assert len(policy.notified) * 0.07 <= 0.11 * taken
    assert taken <= 2.3


def test_notification_does_not_count_against_the_time_budget_of_picks() -> None:
    router, policy, clock = recording_router(seconds=1.0)
    clock.time += 11.0
    router.put(new(0))
    assert router.route(FACTS).state.id == "here-0"
    assert (len(policy.notified), router.fallback_picks) == (1, 0)


def test_token_of_an_endpoint_is_computed_once() -> None:
    """Otherwise a new endpoint's cookie would be unknown until a slow policy is notified."""
    asked: list[str] = []

    def token_of(endpoint_id: str) -> str:
        asked.append(endpoint_id)
        return f"token of {endpoint_id}"

    placement = ByToken(token_of)
    states = [EndpointState(new(number)) for number in range(3)]
    for known in (states[:2], states, states[1:]):
        placement.members_changed(known, 0.0)
        assert placement.of("token of new-1") == (states[1],)
    assert asked == ["new-0", "new-1", "new-2"]
    assert placement.of("token of new-0") == ()


def test_removed_endpoint_settles_its_requests() -> None:
    """It gets no more requests, and its id is free."""
    router, _, _ = recording_router()
    assignment = router.route(FACTS)
    router.put(new(0))
    router.drop("here-0")
    assert [state.id for state in router.states] == ["new-0"]
    assert router.route(FACTS).state.id == "new-0"
    assert assignment.state.in_flight == 1
    with pytest.raises(UnknownEndpoint, match=r"'here-0'.* new-0$"):
        router.drop("here-0")


@pytest.mark.parametrize("replaces", [False, True])
def test_endpoint_that_returns_still_has_its_requests(replaces: bool) -> None:
    """Its limit holds; all else is as of a new endpoint. At another address it is another worker."""
    router, _, _ = recording_router()
    other, limited = new(0), replace(new(1), max_in_flight=1)

    def renew(endpoint: Endpoint) -> EndpointState:
        if replaces:
            router.replace([other])
            router.replace([other, endpoint])
        else:
            router.drop(endpoint.id)
            router.put(endpoint)
        return router.find(endpoint.id)

    router.replace([limited])
    assignment = router.route(FACTS)
    router.set_healthy(limited.id, False)
    router.set_admin_state(limited.id, AdminState.DRAIN)
    state = renew(limited)
    assert (state.in_flight, state.available, state.is_full) == (1, False, True)
    assert (state.admin_state, state.passes_checks, router.leaving) == (AdminState.READY, True, [])
    assert renew(replace(limited, address="http://moved")).available
    assert router.leaving == [state]
    state = renew(limited)
    ended_at = 1.0
    router.settle(assignment, Outcome(OutcomeKind.OK, 200, 0.0, ended_at, ended_at))
    assert (state.in_flight, state.available, state.successes, router.leaving) == (0, True, 1, [])


def test_message_about_an_unknown_endpoint_is_short() -> None:
    """Of many known endpoints it names some."""
    router, _, _ = recording_router()
    for number in range(1000):
        router.put(new(number))
    with pytest.raises(UnknownEndpoint) as error:
        router.find("x")
    assert len(str(error.value)) < 300
    assert str(error.value).endswith("(1001 in all)")


@pytest.mark.second_tier
@pytest.mark.no_cover
@pytest.mark.parametrize("name", registry.known())
def test_removed_endpoints_leave_no_memory(name: str) -> None:
    """Forty sets of twenty new endpoints each, with traffic: a policy keeps nothing of those removed."""
    rng = Random(1)
    policy = registry.make(name, {"table": 251}, rng) if name == "maglev" else maker(name)(rng)
    router = Router(endpoints(1), policy, ManualClock(), rng)

    def replace_endpoints(since: int) -> int:
        for generation in range(since, since + 40):
            router.replace([new(20 * generation + at) for at in range(20)])
            for assignment in [router.route(FACTS) for _ in range(40)]:
                router.settle(assignment, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = replace_endpoints(1000)
        assert replace_endpoints(2000) - before < 24 << 10
    finally:
        tracemalloc.stop()


@pytest.mark.second_tier
@pytest.mark.no_cover
@pytest.mark.parametrize("window", [0.0, 20.0], ids=["at once", "slow start"])
@pytest.mark.parametrize("name", registry.known())
def test_cost_of_single_changes_is_linear(name: str, window: float) -> None:
    """Twice as many endpoints that are added, reweighted, drained and removed take twice as many steps."""

    def change(number: int) -> None:
        rng = Random(1)
        health = Health(rng, panic=Panic(), slow_start=SlowStart(window))
        router = Router(endpoints(1), maker(name)(rng), ManualClock(), rng, health=health)
        for at in range(number):
            router.put(new(at))
        for at in range(number):
            router.put(Endpoint(f"new-{at}", f"http://new-{at}", "r", 2.0))
        router.route(FACTS)
        for at in range(0, number, 4):
            router.set_admin_state(f"new-{at}", AdminState.DRAIN)
        for at in range(number):
            router.drop(f"new-{at}")

    assert growth(change, 150) <= 2.3
