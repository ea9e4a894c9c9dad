"""Every policy of the table keeps the contract; `test_mutants.py` shows that the contract catches those that do not.

A new policy is expected to spread requests as evenly as the less loaded of two, unless `OTHERS` says otherwise.
"""

from __future__ import annotations

from random import Random

import pytest

from policies import Available, EndpointState, contract
from policies.contract import ManualClock, endpoints, rules, spread
from policies.contract.rules import RecoverySignal
from policies.errors import NoEndpointAvailable
from policies.facts import Outcome, OutcomeKind, RequestFacts
from policies.policy import PolicyMaker
from policies.routing.router import Router
from tests.support.expected_policies import EXPECTED, Expected, maker


def check_policy(make: PolicyMaker, expected: Expected) -> None:
    """Check a policy against the contract and its row; a later test checks `returns_in_time` more strictly.

    Raises AssertionError.
    """
    for rule in contract.RULES:
        if rule is not rules.returns_in_time:
            rule(make)
    assert spread.imbalance(make) <= expected.imbalance
    assert spread.idle_share(make) >= expected.idle
    if expected.weights is not None:
        assert spread.weight_error(make) <= expected.weights


class First:
    """The first endpoint; it needs no randomness, so its constructor takes none."""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[0]


def test_class_without_a_random_source_is_accepted() -> None:
    """By type checkers, too."""
    assert contract.Trial(First, endpoints(1, 1)).send().id == "here-0"
    with pytest.raises(contract.ContractBroken, match="balancers"):
        contract.check(First)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", EXPECTED)
def test_policy_keeps_the_contract(name: str) -> None:
    """The rules for all policies, and the bounds of its row."""
    check_policy(maker(name), EXPECTED[name])


@pytest.mark.no_cover
@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected.begins_by_weight])
def test_balancers_begin_at_others_than_the_heaviest(name: str) -> None:
    spread.begins_anywhere(maker(name), (1.0, 1.0, 3.0, 1.0, 1.0, 1.0), 0.6)


@pytest.mark.second_tier
@pytest.mark.no_cover
@pytest.mark.parametrize("name", EXPECTED)
def test_policy_keeps_the_fullest_endpoint_low(name: str) -> None:
    """The fullest of 100 endpoints holds no more than its row says."""
    assert spread.fullest(maker(name)) <= EXPECTED[name].fullest


@pytest.mark.no_cover
@pytest.mark.parametrize("signal", RecoverySignal)
@pytest.mark.parametrize("name", EXPECTED)
def test_recovered_endpoint_gets_its_share_within_3_s(name: str, signal: RecoverySignal) -> None:
    """Seven tenths of a fair share, unless the row says less. The contract asks less of other policies."""
    assert rules.share_after_return(maker(name), signal) >= EXPECTED[name].back / 6


@pytest.mark.parametrize("name", EXPECTED)
def test_policy_survives_an_empty_endpoint_set(name: str) -> None:
    """Discovery may not have found an endpoint yet, and an operator may remove the last one."""
    rng = Random(1)
    router = Router([], maker(name)(rng), ManualClock(), rng)
    for weights in ((1.0, 2.0), (), (3.0,)):
        router.tick()
        with pytest.raises(NoEndpointAvailable):
            router.route(RequestFacts())
        router.replace(endpoints(*weights))
        if weights:
            assignment = router.route(RequestFacts())
            router.replace([])
            router.settle(assignment, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
    assert (router.fallback_picks, router.last_fault, router.in_flight) == (0, None, 0)
