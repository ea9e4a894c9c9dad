"""Each policy's own rule, where the contract is too wide a net: distributions, orders, regions."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from policies import Endpoint, EndpointState, Outcome, OutcomeKind, RequestFacts, Router
from policies.contract import ManualClock, Trial, endpoints
from policies.latency_weighted import LatencyWeighted
from policies.least_in_flight import LeastInFlight
from policies.policy import PolicyMaker
from policies.random_choice import RandomChoice
from policies.regions import RegionRoundRobin, SingleRegion
from policies.round_robin import RoundRobin
from policies.two_choices import draw_two

FACTS = RequestFacts(region="x")


def chi_square(seen: Counter[int], expected: list[float]) -> float:
    """Pearson's statistic of counts per index against expected counts."""
    return sum((seen[i] - e) ** 2 / e for i, e in enumerate(expected))


def router(policy: PolicyMaker, regions: str, weights: list[float] | None = None) -> Router:
    """One endpoint per letter: the letter is its region, its id its place."""
    weighed = zip(regions, weights or [1.0] * len(regions), strict=True)
    members = [Endpoint(str(i), "http://x", region, weight) for i, (region, weight) in enumerate(weighed)]
    return Router(members, policy(Random(11)), ManualClock(), Random(12))


def picks(r: Router, times: int) -> list[int]:
    """Which were picked, none of them coming back."""
    return [int(r.route(FACTS).endpoint.id) for _ in range(times)]


@pytest.mark.parametrize("weights", [[1, 1, 1, 1, 1], [1, 2, 3, 4, 5], [1, 1, 1, 1, 400]])
def test_random_follows_the_weights(weights: list[float]) -> None:
    """Chi-square at 4 degrees of freedom stays below 18.5 (p = 0.001), by rejection or by the exact draw."""
    seen = Counter(picks(router(RandomChoice, "xxxxx", weights), 20_000))
    assert chi_square(seen, [20_000 * w / sum(weights) for w in weights]) < 18.5


def test_random_has_an_end_for_hopeless_weights() -> None:
    """With weights a million apart and the heaviest away, rejection gives way to one exact draw."""
    r = router(RandomChoice, "xxx", [1, 3, 1e6])
    r.set_healthy("2", False)
    seen = Counter(picks(r, 4000))
    assert chi_square(seen, [1000, 3000]) < 10.8


def test_drawing_two_is_without_replacement_and_even() -> None:
    """All 20 ordered pairs of five come equally often (chi-square, 19 degrees, p = 0.001: 43.8), a pair of
    equals never."""
    rng = Random(5)
    seen = Counter(draw_two(5, rng.random) for _ in range(20_000))
    assert all(a != b for a, b in seen)
    assert len(seen) == 20
    assert sum((n - 1000) ** 2 / 1000 for n in seen.values()) < 43.8


def test_more_choices_find_the_idle_one_more_often() -> None:
    """With as many choices as endpoints it is always found, with two in 2/5."""
    for choices, share in ((5, 1.0), (2, 0.4)):
        r = router(lambda rng, d=choices: LeastInFlight(rng, choices=d), "xxxxx")  # type: ignore[misc]
        for state in r.states[1:]:
            state.in_flight = 50
        found = sum(r.policy.pick(FACTS, r.available, 0.0).id == "0" for _ in range(4000)) / 4000
        assert found == pytest.approx(share, abs=0.03)


def test_power_of_two_choices_balances() -> None:
    """500 balls in 100 bins: the fullest holds at most 5 + log2 log2 100 + 1; random fills one to 11 or
    more."""
    two = Counter(picks(router(LeastInFlight, "x" * 100), 500))
    one = Counter(picks(router(RandomChoice, "x" * 100), 500))
    assert max(two.values()) <= 8
    assert max(one.values()) >= 10


def test_round_robin_takes_everyone_in_turn() -> None:
    """From a random start, through a flip that neither skips nor repeats anybody."""
    r = router(RoundRobin, "xxxxx")
    first = picks(r, 1)[0]
    assert picks(r, 5) == [(first + i) % 5 for i in range(1, 6)]
    gone = (first + 1) % 5
    r.set_healthy(str(gone), False)
    assert picks(r, 4) == [i for i in ((first + k) % 5 for k in range(1, 6)) if i != gone]


def test_round_robin_starts_differ_between_seeds() -> None:
    """Units started together do not hit the same endpoint together."""
    starts = {Trial(RoundRobin, endpoints(*[1] * 8), seed=seed).send().id for seed in range(20)}
    assert len(starts) > 4


def test_smooth_round_robin_interleaves() -> None:
    """nginx's example: weights 5, 1, 1 give a a b a c a a, or some other part of that, never five a in a row."""
    for seed in range(20):
        seen = picks(router(lambda rng, s=seed: RoundRobin(Random(s)), "xxx", [5, 1, 1]), 707)  # type: ignore[misc]
        assert [seen[7:].count(i) for i in range(3)] == [500, 100, 100]
        assert "00000" not in "".join(map(str, seen[7:]))


def test_region_round_robin_gives_regions_the_same() -> None:
    """A region of one gets as much as a region of three."""
    seen = Counter(picks(router(RegionRoundRobin, "xyyy"), 600))
    assert [seen[i] for i in range(4)] == [300, 100, 100, 100]


def test_region_round_robin_survives_the_loss_of_a_region() -> None:
    """The others share, and the returned one is next."""
    r = router(RegionRoundRobin, "xyz")
    picks(r, 3)
    r.set_healthy("1", False)
    assert sorted(picks(r, 4)) == [0, 0, 2, 2]
    r.set_healthy("1", True)
    assert picks(r, 1) == [1]


def test_single_region_stays_there_while_it_can() -> None:
    """Only when nobody is left there does it go elsewhere."""
    r = router(lambda rng: SingleRegion(rng, region="y"), "xyyx")
    assert set(picks(r, 50)) == {1, 2}
    for i in ("1", "2"):
        r.set_healthy(i, False)
    assert set(picks(r, 50)) == {0, 3}


def test_latency_weighted_is_inversely_proportional() -> None:
    """Twice as quick, twice as often (apart from what is explored)."""
    r = router(lambda rng: LatencyWeighted(rng, explore=0.0), "xx")
    for state, latency in zip(r.states, (0.1, 0.2), strict=True):
        state.latency.record(latency, 0, 0.0)
    seen = Counter(r.policy.pick(FACTS, r.available, 0.0).id for _ in range(9000))
    assert seen["0"] / 9000 == pytest.approx(2 / 3, abs=0.02)


def test_latency_weighted_explores() -> None:
    """Its floor reaches whom its weights would not: power 20 at twice the latency is one in a million."""
    r = router(lambda rng: LatencyWeighted(rng, power=20.0), "xx")
    for state, latency in zip(r.states, (0.1, 0.2), strict=True):
        state.latency.record(latency, 0, 0.0)
    seen = Counter(r.policy.pick(FACTS, r.available, 0.0).id for _ in range(9000))
    assert seen["1"] / 9000 == pytest.approx(0.015, abs=0.006)


class Listener(RandomChoice):
    """An inner policy that writes down what it is told."""

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        super().members_changed(states, now)
        told.append(("members", tuple(state.id for state in states)))

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        told.append(("observe", state.id))

    def tick(self, now: float) -> None:
        told.append(("tick", now))


told: list[tuple[str, object]] = []


def test_children_hear_what_concerns_their_region() -> None:
    """An inner policy is told the members and outcomes of its own region only, and every tick."""
    told.clear()
    r = router(lambda rng: SingleRegion(rng, region="y", inner=Listener), "xyyx")
    assignment = r.route(FACTS)
    r.settle(assignment, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
    r.tick()
    r.replace([state.endpoint for state in r.states[:2]])
    assert told == [
        ("members", ("1", "2")),
        ("observe", assignment.endpoint.id),
        ("tick", 0.0),
        ("members", ("1",)),
    ]
