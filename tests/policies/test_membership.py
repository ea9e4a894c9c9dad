"""One endpoint at a time: what it costs, and when the policy learns of it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from policies import AdminState, Available, EndpointState, RequestFacts, Router, registry
from policies.contract import ManualClock, endpoints
from policies.errors import UnknownEndpoint
from policies.facts import Endpoint
from policies.health.health import Health
from policies.health.panic import Panic
from policies.health.slow_start import SlowStart
from policies.routing.affinity import ByToken
from tests.policies.test_contract import maker
from tests.steps import growth

FACTS = RequestFacts(key="k")


class Listener:
    """Picks the first, and remembers which endpoints it was told of; being told takes `seconds`."""

    def __init__(self, clock: ManualClock, seconds: float = 0.0) -> None:
        self.heard: list[list[str]] = []
        self._clock = clock
        self._seconds = seconds

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self.heard.append([state.id for state in states])
        self._clock.time += self._seconds

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[0]


def listening(seconds: float = 0.0) -> tuple[Router, Listener, ManualClock]:
    clock = ManualClock()
    policy = Listener(clock, seconds)
    router = Router(endpoints(1), policy, clock, Random(1))
    policy.heard.clear()
    return router, policy, clock


def new(number: int) -> Endpoint:
    return Endpoint(f"new-{number}", f"http://new-{number}", "r", 1.0)


def test_the_policy_hears_of_all_changes_before_its_next_pick() -> None:
    """Once, however many there were, and of no change never."""
    router, policy, _ = listening()
    for number in range(3):
        router.put(new(number))
    router.drop("new-1")
    assert policy.heard == []
    for _ in range(2):
        router.route(FACTS)
    assert policy.heard == [["here-0", "new-0", "new-2"]]


def test_a_tick_tells_of_changes_too() -> None:
    """Without requests there is no pick."""
    router, policy, _ = listening()
    router.put(new(0))
    router.tick()
    assert policy.heard == [["here-0", "new-0"]]


def test_a_policy_that_learns_slowly_hears_of_many_changes_at_once() -> None:
    """A table that takes 70 ms to fill takes a tenth of the time, however many endpoints come in it."""
    router, policy, clock = listening(seconds=0.07)
    router.put(new(0))
    began = clock.time
    for number in range(1, 1000):
        router.route(FACTS)
        router.put(new(number))
        clock.time += 0.002
    taken = clock.time - began
    assert len(policy.heard) * 0.07 <= 0.11 * taken
    assert taken <= 2.3


def test_what_learning_takes_is_not_the_pick_s_time() -> None:
    """The fallback stands in for a slow pick, not for a slow change of endpoints."""
    router, policy, clock = listening(seconds=1.0)
    clock.time += 11.0
    router.put(new(0))
    assert router.route(FACTS).state.id == "here-0"
    assert (len(policy.heard), router.fallback_picks) == (1, 0)


def test_the_token_of_an_endpoint_is_worked_out_once() -> None:
    """A policy that takes long to learn learns less often, and a new endpoint's cookie would be unknown meanwhile."""
    asked: list[str] = []

    def token_of(endpoint_id: str) -> str:
        asked.append(endpoint_id)
        return f"token of {endpoint_id}"

    placement = ByToken(token_of)
    states = [EndpointState(new(number)) for number in range(3)]
    for known in (states[:2], states, states[1:]):
        placement.members_changed(known)
        assert placement.of("token of new-1") == (states[1],)
    assert asked == ["new-0", "new-1", "new-2"]
    assert placement.of("token of new-0") == ()


def test_one_that_is_gone_settles_what_it_has() -> None:
    """It takes no more requests, and its id is free."""
    router, _, _ = listening()
    assignment = router.route(FACTS)
    router.put(new(0))
    router.drop("here-0")
    assert [state.id for state in router.states] == ["new-0"]
    assert router.route(FACTS).state.id == "new-0"
    assert assignment.state.in_flight == 1
    with pytest.raises(UnknownEndpoint, match=r"no endpoint 'here-0'; known: new-0$"):
        router.drop("here-0")


def test_of_many_known_ones_a_message_names_some() -> None:
    """One line that can be read."""
    router, _, _ = listening()
    for number in range(1000):
        router.put(new(number))
    with pytest.raises(UnknownEndpoint) as error:
        router.find("x")
    assert len(str(error.value)) < 300
    assert str(error.value).endswith("… (1001 in all)")


@pytest.mark.second_tier
@pytest.mark.no_cover
@pytest.mark.parametrize("window", [0.0, 20.0], ids=["at once", "slow start"])
@pytest.mark.parametrize("name", registry.known())
def test_n_changes_one_by_one_are_linear(name: str, window: float) -> None:
    """Twice as many endpoints that come, change their weight, drain and go take twice as many steps."""

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
