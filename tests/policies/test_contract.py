"""Every policy of the table keeps the contract; and the contract catches those that do not.

A new policy is one row in EXPECTED.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from policies import contract, registry
from policies.available import Available
from policies.contract import ContractBroken, ManualClock, Told, Trial, endpoints
from policies.errors import NoEndpointAvailable
from policies.facts import Outcome, OutcomeKind, RequestFacts
from policies.policy import Policy, PolicyMaker
from policies.router import Router
from policies.state import EndpointState


@dataclass(frozen=True)
class Expected:
    """What may be expected of one policy, beyond what holds for all.

    `imbalance` is the most that an endpoint of equals gets, over its fair share; `weights` how far a share
    may be from what the weights say (None: they are ignored on purpose); `idle` the least share that the
    idle one of two gets.
    """

    imbalance: float
    weights: float | None
    idle: float
    options: dict[str, Any] = field(default_factory=dict)


EXPECTED = {
    "random": Expected(imbalance=1.08, weights=0.02, idle=0.4),
    "round-robin": Expected(imbalance=1.001, weights=0.001, idle=0.5),
    "region-round-robin": Expected(imbalance=1.001, weights=0.001, idle=0.5),
    "single-region": Expected(imbalance=1.02, weights=0.02, idle=1.0, options={"region": contract.REGION}),
    "least-in-flight": Expected(imbalance=1.02, weights=0.02, idle=1.0),
    "latency-weighted": Expected(imbalance=1.08, weights=0.02, idle=0.4),
    "region-aware": Expected(imbalance=1.02, weights=0.02, idle=1.0),
}


def maker(name: str) -> PolicyMaker:
    """How to make the policy of that name with the options of its row."""
    return lambda rng: registry.make(name, EXPECTED[name].options, rng)


def imbalance(make: PolicyMaker) -> float:
    """The largest share over the fair one, six equal endpoints, 30 outstanding."""
    trial = Trial(make, endpoints(*[1] * 6))
    trial.closed_loop(30, 30)
    picked = trial.picked()
    return max(picked.values()) * len(picked) / picked.total()


def weight_error(make: PolicyMaker) -> float:
    """How far from 1 : 2 : 3 the shares are at worst, 60 outstanding."""
    trial = Trial(make, endpoints(1, 2, 3))
    trial.closed_loop(60, 20)
    picked = trial.picked(since=1)
    return max(abs(picked[f"here-{i}"] / picked.total() - (i + 1) / 6) for i in range(3))


def idle_share(make: PolicyMaker) -> float:
    """The share of 1000 picks that the idle one of two gets while the other holds ten requests."""
    trial = Trial(make, endpoints(1, 1))
    busy, idle = trial.router.states
    busy.in_flight = 10
    policy = trial.router.policy
    picks = [policy.pick(trial.facts, trial.router.available, 0.0) for _ in range(1000)]
    return sum(pick is idle for pick in picks) / 1000


def judge(make: PolicyMaker, expected: Expected) -> None:
    """Hold a policy to the contract and to its row. Raises AssertionError."""
    contract.check(make)
    assert imbalance(make) <= expected.imbalance
    assert expected.weights is None or weight_error(make) <= expected.weights
    assert idle_share(make) >= expected.idle


def test_every_policy_of_ours_has_a_row() -> None:
    """No policy escapes the contract."""
    assert set(EXPECTED) == set(registry.TABLE)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", EXPECTED)
def test_policy_keeps_the_contract(name: str) -> None:
    """It does what all must do, and as well as its row says."""
    judge(maker(name), EXPECTED[name])


@pytest.mark.no_cover
@pytest.mark.parametrize("told", Told)
@pytest.mark.parametrize("name", EXPECTED)
def test_policy_gives_its_share_to_who_is_back(name: str, told: Told) -> None:
    """Of ours more is asked than of others': seven tenths of a fair share within 3 s."""
    assert contract.share_after_return(maker(name), told) >= 0.7 / 6


@pytest.mark.parametrize("name", EXPECTED)
def test_policy_outlives_a_time_without_endpoints(name: str) -> None:
    """Discovery may have found nobody yet, and an operator may take out the last one."""
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
    assert (router.demoted, router.last_fault, router.in_flight) == (0, None, 0)


class WithReplacement:
    """P2C that may draw the same endpoint twice."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return min(self._rng.choices(available, k=2), key=lambda state: state.in_flight / state.weight)


class PlainRandom(WithReplacement):
    """P2C that forgot the second choice: Caddy's random_choose for years. It ignores weights, too."""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self._rng.choice(available)


class Unweighted(WithReplacement):
    """P2C on bare in-flight counts."""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return min(self._rng.sample(available, 2), key=lambda state: state.in_flight)


class Sinkhole(WithReplacement):
    """Least in flight of all: who fails at once is always the least loaded."""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return min(available, key=lambda state: (state.in_flight / state.weight, state.order))


class Stampede(WithReplacement):
    """Least mean latency, the unmeasured scored 0."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._seen: dict[str, float] = {}

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        self._seen[state.id] = outcome.ended_at - outcome.sent_at

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return min(available, key=lambda state: (self._seen.get(state.id, 0.0), self._rng.random()))


class Starver(Stampede):
    """The same, with a mean that never forgets: one bad time is for good."""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        quick = [state for state in available if self._seen.get(state.id, 0.0) < 1.0]
        return self._rng.choice(quick or available)


class Hidden(WithReplacement):
    """Randomness of its own."""

    def __init__(self, rng: Random) -> None:
        super().__init__(Random())


class Straying(WithReplacement):
    """Remembers endpoints and picks them when they are gone."""

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        self._all = states

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self._rng.choice(self._all)


class Grudge(WithReplacement):
    """Never again goes to who has failed once."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._shunned: set[str] = set()

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        if outcome.kind.is_failure:
            self._shunned.add(state.id)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self._rng.choice([state for state in available if state.id not in self._shunned] or available)


class Sulk(WithReplacement):
    """Goes to nobody for ten seconds after it has failed, whatever is said of it."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._until: dict[str, float] = {}

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        if outcome.kind.is_failure:
            self._until[state.id] = now + 10

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self._rng.choice([s for s in available if self._until.get(s.id, 0.0) <= now] or available)


class Clique(WithReplacement):
    """Knows whom it knew at the start, and nobody else."""

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        self._known = getattr(self, "_known", None) or {state.id for state in states}

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self._rng.choice([state for state in available if state.id in self._known] or available)


LEAST = EXPECTED["least-in-flight"]


@pytest.mark.parametrize(
    "mutant", [WithReplacement, PlainRandom, Unweighted, Sinkhole, Stampede, Starver, Hidden, Straying]
)
def test_contract_catches_a_planted_fault(mutant: type[Policy]) -> None:
    """Each classic fault is seen: a contract that nothing can break proves nothing."""
    with pytest.raises(AssertionError):
        judge(mutant, LEAST)


@pytest.mark.parametrize(
    ("mutant", "rule"),
    [
        (Sinkhole, contract.shuns_failures),
        (Grudge, contract.ends_with_failures),
        (Sulk, contract.returns_in_time),
        (Clique, contract.bears_a_slow_start),
        (Stampede, contract.spares_a_cold_endpoint),
        (Starver, contract.starves_nobody),
        (Hidden, contract.repeats_itself),
        (Straying, contract.stays_within_the_set),
    ],
)
def test_each_rule_catches_its_own_fault(mutant: type[Policy], rule: Any) -> None:
    """The rule that is meant to see a fault is the one that does."""
    with pytest.raises(ContractBroken):
        rule(mutant)


def test_drawing_with_replacement_shows_in_the_idle_share() -> None:
    """Without replacement the idle one of two is always found; with it, three times in four; at random, in
    half."""
    shares = [idle_share(mutant) for mutant in (maker("least-in-flight"), WithReplacement, PlainRandom)]
    assert shares == pytest.approx([1.0, 0.75, 0.5], abs=0.05)


def test_ignored_weights_show_in_the_shares() -> None:
    """Equal counts at unequal weights are an error of a sixth, far beyond any row."""
    assert weight_error(Unweighted) > 0.1
