"""Session affinity around any policy: one key, one endpoint while it is available; shares by weight; few keys move."""

from __future__ import annotations

from random import Random

import pytest

from policies.algorithms.random_choice import RandomChoice
from policies.algorithms.regions import RegionRoundRobin
from policies.algorithms.rendezvous import DEPTH
from policies.contract import ManualClock
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.policy import PolicyMaker
from policies.routing.affinity import ByRendezvous, ByToken, Placement, Sticky
from policies.routing.router import Router


def endpoints(count: int, weight: float = 1.0, limit: int | None = None) -> list[Endpoint]:
    return [Endpoint(f"w{n}", f"http://w{n}", "r", weight, limit) for n in range(count)]


def router(placement: Placement, members: list[Endpoint]) -> Router:
    rng = Random(1)
    return Router(members, Sticky(RandomChoice(rng), placement), ManualClock(), rng)


def placed(router: Router, key: str | None, tried: frozenset[str] = frozenset()) -> str:
    """The endpoint of a request that ends at once."""
    assignment = router.route(RequestFacts(key=key, tried=tried))
    router.settle(assignment, Outcome(OutcomeKind.OK, 200, 0.0, 0.0, 0.0))
    return assignment.endpoint.id


KEYS = [f"user-{number}" for number in range(2000)]


def test_full_endpoint_passes_the_key_to_the_next() -> None:
    one = router(ByRendezvous(), endpoints(3, limit=1))
    held = [one.route(RequestFacts(key="k")) for _ in range(3)]
    assert len({assignment.endpoint.id for assignment in held}) == 3


def test_inner_policy_places_a_key_whose_preferred_endpoints_are_unavailable() -> None:
    one = router(ByRendezvous(), endpoints(DEPTH + 2))
    for _ in range(DEPTH):
        one.set_enabled(placed(one, "k"), False)
    assert {placed(one, "k") for _ in range(50)} == {state.id for state in one.available}
    assert len(one.available) == 2


def test_inner_policy_places_requests_without_a_key() -> None:
    one = router(ByRendezvous(), endpoints(4))
    assert len({placed(one, None) for _ in range(100)}) == 4


def token(endpoint_id: str) -> str:
    return f"token of {endpoint_id}"


def test_token_names_its_endpoint() -> None:
    """Unknown tokens and tokens of unavailable endpoints are placed by the inner policy."""
    one = router(ByToken(token), endpoints(4))
    assert {placed(one, token("w3")) for _ in range(20)} == {"w3"}
    assert len({placed(one, "token of w9") for _ in range(100)}) == 4
    one.set_enabled("w3", False)
    assert {placed(one, token("w3")) for _ in range(100)} == {"w0", "w1", "w2"}
    one.replace(endpoints(3))
    assert {placed(one, token("w3")) for _ in range(100)} == {"w0", "w1", "w2"}


def test_hooks_of_the_inner_policy_are_called() -> None:
    """Those that it has, and no others."""

    class Inner(RandomChoice):
        def __init__(self) -> None:
            super().__init__(Random(1))
            self.seen: list[str] = []

        def observe(self, state: object, outcome: object, now: float) -> None:
            self.seen.append("observe")

    inner = Inner()
    one = Router(endpoints(2), Sticky(inner, ByRendezvous()), ManualClock(), Random(1))
    placed(one, "k")
    one.tick()
    assert inner.seen == ["observe"]
    assert one.last_fault is None


@pytest.mark.parametrize("policy", [RandomChoice, RegionRoundRobin])
def test_panic_is_that_of_the_policy_around_which_it_is(policy: PolicyMaker) -> None:
    """Per region under a policy that sends a region its share however few endpoints are left there."""
    sticky = Sticky(policy(Random(1)), ByRendezvous())
    found = Router(endpoints(1), sticky, ManualClock(), Random(1))
    assert found.health.panic.keeps_to_regions == (policy is RegionRoundRobin)
