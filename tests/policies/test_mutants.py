"""The contract catches the faults it is for: known defects of balancers, planted one at a time.

Each mutant is a correct policy with one defect. A named rule catches it, and the correct policy passes that rule and
all rules for every policy: so it is the defect that was caught.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from policies import contract
from policies.contract import ContractBroken, rules, spread
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.errors import Overloaded
from policies.facts import Outcome, OutcomeKind, RequestFacts
from policies.policy import Policy, PolicyMaker
from policies.selection.two_choices import relative_load

Rule = Callable[[PolicyMaker], None]


class Seeded:
    """A policy with the randomness it is given."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng


class TwoChoices(Seeded):
    """Correct: the less loaded of two drawn without replacement, by weight, with failures charged."""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return min(self.draw(available), key=lambda state: self.load(state, now))

    def draw(self, available: Available) -> Sequence[EndpointState]:
        return self.rng.sample(available, min(2, len(available)))

    def load(self, state: EndpointState, now: float) -> float:
        return relative_load(state, now)


class PlainRandom(TwoChoices):
    """The comparison never decides for the second: Caddy's random_choose for years."""

    def load(self, state: EndpointState, now: float) -> float:
        return -1.0


class WithReplacement(TwoChoices):
    """Both may be the same: with two endpoints that is one choice, half of the time."""

    def draw(self, available: Available) -> Sequence[EndpointState]:
        return self.rng.choices(available, k=2)


class Unweighted(TwoChoices):
    """Requests in flight without weights."""

    def load(self, state: EndpointState, now: float) -> float:
        return relative_load(state, now) * state.weight


class Sinkhole(TwoChoices):
    """Failures are not charged: an endpoint that fails at once is always the least loaded."""

    def load(self, state: EndpointState, now: float) -> float:
        return state.in_flight / state.weight


class LeastTime(Seeded):
    """Correct: the least expected time. What is not measured for long is forgotten and gets one trial at a time."""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return min(available, key=lambda state: (self.time(state, now), self.rng.random()))

    def time(self, state: EndpointState, now: float) -> float:
        return state.predicted_latency(now) / state.weight


class ByOwnMean(LeastTime):
    """The least mean × (in flight + 1), with its own mean, as in nginx's and Traefik's least time."""

    unmeasured = 0.1

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._mean: dict[str, float] = {}

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        sample = outcome.ended_at - outcome.sent_at + 5.0 * outcome.kind.is_failure
        mean = self._mean.get(state.id, sample)
        self._mean[state.id] = mean + 0.2 * (sample - mean)

    def time(self, state: EndpointState, now: float) -> float:
        return self._mean.get(state.id, self.unmeasured) * (state.in_flight + 1) / state.weight


class Starver(ByOwnMean):
    """Only requests change the mean: an endpoint that was slow once gets no more (Traefik #12306)."""


class Stampede(ByOwnMean):
    """An endpoint without measurements is expected to take no time, however many requests are on their way."""

    unmeasured = 0.0


class EarliestDeadline(Seeded):
    """Correct: weighted round-robin by deadlines, with a random first phase for each new endpoint."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._deadlines: dict[str, float] = {}
        self._reached = 0.0

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self._deadlines = {s.id: self._reached + self.phase() / s.endpoint.weight for s in states}

    def phase(self) -> float:
        return self.rng.random()

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        state = min(available, key=lambda state: self._deadlines[state.id])
        self._reached = max(self._reached, self._deadlines[state.id])
        self._deadlines[state.id] = self._reached + 1 / state.weight
        return state


class InPhase(EarliestDeadline):
    """All begin at the start of their periods: every rebuilt balancer goes to the same endpoint first."""

    def phase(self) -> float:
        return 1.0


class Hidden(TwoChoices):
    """Has randomness of its own."""

    def __init__(self, rng: Random) -> None:
        super().__init__(Random())


class Resetting(TwoChoices):
    """Sets the requests in flight of what it picks to none, as if they were its own."""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        state = super().pick(facts, available, now)
        state.in_flight = 0
        return state


class Reweighting(TwoChoices):
    """Halves the weight of an endpoint that fails."""

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        if outcome.kind.is_failure:
            state.weight = max(0.1, state.weight / 2)


class Straying(TwoChoices):
    """Remembers endpoints and picks them after they were removed."""

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self._all = states

    def draw(self, available: Available) -> Sequence[EndpointState]:
        return self.rng.sample(self._all, 2)


class Grudge(TwoChoices):
    """Never again picks an endpoint that has failed once."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._failed: set[str] = set()

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        if outcome.kind.is_failure:
            self._failed.add(state.id)

    def load(self, state: EndpointState, now: float) -> float:
        return super().load(state, now) + 1e6 * (state.id in self._failed)

    def draw(self, available: Available) -> Sequence[EndpointState]:
        return available


class Sulk(TwoChoices):
    """Picks no endpoint for ten seconds after its failure, whatever its checks say."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._until: dict[str, float] = {}

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        if outcome.kind.is_failure:
            self._until[state.id] = now + 10

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self.rng.choice([s for s in available if self._until.get(s.id, 0.0) <= now] or available)


class Clique(TwoChoices):
    """Picks only endpoints that were there at the start."""

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self._known = getattr(self, "_known", None) or {state.id for state in states}

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self.rng.choice([state for state in available if state.id in self._known] or available)


class Latch(TwoChoices):
    """Rejects what would wait, until ten seconds after the last client that left, or the last rejection."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._until = 0.0

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        if outcome.kind is OutcomeKind.ABANDONED:
            self._until = now + 10

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        if now < self._until and all(state.in_flight for state in available):
            self._until = now + 10
            raise Overloaded()
        return super().pick(facts, available, now)


BEGINS_BY_WEIGHT: Rule = partial(spread.begins_anywhere, weights=(1.0, 1.0, 3.0, 1.0, 1.0, 1.0), most=0.6)

CAUGHT: list[tuple[type[Policy], type[Policy], Rule, str]] = [
    (Sinkhole, TwoChoices, rules.avoids_failing, "an endpoint that fails every request got"),
    (Starver, LeastTime, rules.avoids_starvation, "an endpoint that had recovered got"),
    (Stampede, LeastTime, rules.spares_a_cold_endpoint, "a cold endpoint got 20 of the next 20"),
    (InPhase, EarliestDeadline, spread.begins_anywhere, "went to the same endpoint first"),
    (InPhase, EarliestDeadline, BEGINS_BY_WEIGHT, "100% of the balancers that were started at once"),
    (Hidden, TwoChoices, rules.repeats_itself, "the same seed gave two different runs"),
    (Resetting, TwoChoices, rules.changes_no_counts, "the policy has changed in_flight of an endpoint"),
    (Reweighting, TwoChoices, rules.changes_no_counts, "has changed weight of an endpoint: 0.1, not 1"),
    (Straying, TwoChoices, rules.stays_within_the_set, "fallback picks"),
    (Grudge, TwoChoices, rules.ends_with_failures, "an endpoint that is back from its ejection got"),
    (Latch, TwoChoices, rules.ends_rejections, "of a load of 60% was rejected after a burst"),
    (Sulk, TwoChoices, rules.returns_in_time, "an endpoint that is well by"),
    (Clique, TwoChoices, rules.respects_slow_start, "a new endpoint got"),
]


def named(value: object) -> str:
    """The id of a test's parameter."""
    found = value.func if isinstance(value, partial) else value
    return getattr(found, "__name__", "")


@pytest.mark.parametrize(("mutant", "correct", "rule", "verdict"), CAUGHT, ids=named)
def test_rule_catches_the_mutant_and_passes_the_correct_policy(
    mutant: type[Policy], correct: type[Policy], rule: Rule, verdict: str
) -> None:
    """The message names the figure."""
    rule(correct)
    with pytest.raises(ContractBroken, match=verdict):
        rule(mutant)


def test_every_rule_catches_a_mutant() -> None:
    assert set(contract.RULES) <= {rule for _, _, rule, _ in CAUGHT}


def test_drawing_with_replacement_shows_in_the_idle_share() -> None:
    """Without replacement the idle one of two is always found; with it, three times in four; at random, in half."""
    shares = [spread.idle_share(mutant) for mutant in (TwoChoices, WithReplacement, PlainRandom)]
    assert shares == pytest.approx([1.0, 0.75, 0.5], abs=0.05)


def test_ignored_weights_show_in_the_shares() -> None:
    """Equal counts at unequal weights are an error of a sixth, far beyond any bound."""
    assert spread.weight_error(Unweighted) > 0.1
    assert spread.weight_error(TwoChoices) < 0.02


def test_the_fullest_of_a_hundred_is_as_theory_says() -> None:
    """About 19 of 1000 at random, about 12 by two choices."""
    assert spread.fullest(PlainRandom) == pytest.approx(19, abs=1.5)
    assert spread.fullest(TwoChoices) == pytest.approx(12, abs=0.5)
