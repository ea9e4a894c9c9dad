"""Endpoints that a policy begins to doubt."""

from __future__ import annotations

from random import Random

from policies.contract import ManualClock
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Endpoint, RequestFacts
from policies.routing.router import Router


class Doubting:
    """Doubts the endpoints of `bad`."""

    def __init__(self) -> None:
        self.bad: set[str] = set()

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[0]

    def doubts(self, state: EndpointState) -> bool:
        return state.id in self.bad


class Certain:
    """Has no doubts."""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[0]


def router(policy: Doubting | Certain) -> Router:
    members = [Endpoint(name, f"http://{name}", "here") for name in "abc"]
    return Router(members, policy, ManualClock(), Random(1))


def test_each_doubt_is_reported_once() -> None:
    """And again after it had ended; the second endpoint's beside the first one's."""
    policy = Doubting()
    one = router(policy)
    found = []
    for bad in ("", "a", "a", "ab", "b", "ab", "", "c"):
        policy.bad = set(bad)
        found.append("".join(state.id for state in one.newly_doubted()))
    assert found == ["", "a", "", "b", "", "a", "", "c"]


def test_policies_without_the_hook_doubt_nothing() -> None:
    assert router(Certain()).newly_doubted() == []
