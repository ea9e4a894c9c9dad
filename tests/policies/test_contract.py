"""Every policy of the table keeps the contract; `test_mutants.py` shows that the contract catches those that do not.

A new policy is one row in EXPECTED.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from policies import contract, registry
from policies.contract import ManualClock, RecoverySignal, endpoints
from policies.errors import NoEndpointAvailable
from policies.facts import Outcome, OutcomeKind, RequestFacts
from policies.policy import PolicyMaker
from policies.routing.router import Router


@dataclass(frozen=True)
class Expected:
    """Bounds for one policy, beyond the rules for all.

        `imbalance` is the largest share among equal endpoints, over the fair share; `weights` how far a share
    may be from
        the weights (None: they are ignored on purpose); `idle` the least share of the idle one of two;
    `fullest` the most
        that one of a hundred holds of a thousand requests, on average (random: 19, two choices: 12);
    `begins_by_weight`
        whether balancers that start together begin at others than the heaviest, too; `back` the part of a
    fair share in
        the third second after recovery.
    """

    imbalance: float
    weights: float | None
    idle: float
    fullest: float = 20.0
    begins_by_weight: bool = True
    back: float = 0.7
    options: dict[str, Any] = field(default_factory=dict)


EXPECTED = {
    "random": Expected(imbalance=1.08, weights=0.02, idle=0.4),
    "round-robin": Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0),
    "region-round-robin": Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0),
    "single-region": Expected(
        imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5, options={"region": contract.REGION}
    ),
    "least-in-flight": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5),
    "latency-weighted": Expected(imbalance=1.08, weights=0.02, idle=0.4, fullest=15.5),
    "region-aware": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5),
    "steelyard": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5),
    "smooth-round-robin": Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0),
    "edf-round-robin": Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0),
    "peak-ewma": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5),
    "least-time": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=10.0),
    "reported-load": Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0),
    # the quickest cold endpoint gets all until it is hot, so shares vary; weights count only in what is hot
    "prequal": Expected(imbalance=1.1, weights=None, idle=1.0, fullest=12.5, back=0.3),
    "c3": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=11.5),
    # the idle queue ignores weights; where none is idle, the pick is random
    "join-idle-queue": Expected(imbalance=1.08, weights=0.02, idle=1.0),
}
for keyed in ("ring-hash", "maglev", "rendezvous", "aperture"):  # without a key: two choices
    EXPECTED[keyed] = Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5)


def maker(name: str) -> PolicyMaker:
    """A maker of the policy with the options of its row."""
    return lambda rng: registry.make(name, EXPECTED[name].options, rng)


def check_policy(make: PolicyMaker, expected: Expected) -> None:
    """Check a policy against the contract and its row. Raises AssertionError."""
    contract.check(make)
    contract.evens_out(make, expected.imbalance)
    contract.finds_the_idle(make, expected.idle)
    if expected.weights is not None:
        contract.respects_weights(make, expected.weights)
    if expected.begins_by_weight:
        contract.begins_by_weight(make)


def test_every_policy_has_a_row() -> None:
    assert set(EXPECTED) == set(registry.TABLE)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", EXPECTED)
def test_policy_keeps_the_contract(name: str) -> None:
    """The rules for all policies, and the bounds of its row."""
    check_policy(maker(name), EXPECTED[name])


@pytest.mark.second_tier
@pytest.mark.no_cover
@pytest.mark.parametrize("name", EXPECTED)
def test_policy_keeps_the_fullest_endpoint_low(name: str) -> None:
    """The fullest of 100 endpoints holds no more than its row says."""
    contract.keeps_the_fullest_low(maker(name), EXPECTED[name].fullest)


@pytest.mark.no_cover
@pytest.mark.parametrize("signal", RecoverySignal)
@pytest.mark.parametrize("name", EXPECTED)
def test_recovered_endpoint_gets_its_share_within_3_s(name: str, signal: RecoverySignal) -> None:
    """Seven tenths of a fair share, unless the row says less. The contract asks less of other policies."""
    assert contract.share_after_return(maker(name), signal) >= EXPECTED[name].back / 6


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
