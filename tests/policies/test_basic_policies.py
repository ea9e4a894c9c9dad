"""Rules of the simpler policies beyond the contract: distributions, order, regions."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from policies import Endpoint, EndpointState, Outcome, OutcomeKind, RequestFacts, Router
from policies.algorithms.latency_weighted import LatencyWeighted
from policies.algorithms.random_choice import RandomChoice
from policies.algorithms.regions import RegionRoundRobin, SingleRegion
from policies.algorithms.round_robin import RoundRobin
from policies.contract import ManualClock
from policies.policy import PolicyMaker
from policies.selection.two_choices import draw_two

FACTS = RequestFacts(region="x")


def chi_square(seen: Counter[int], expected: list[float]) -> float:
    """Pearson's statistic of counts per index against expected counts."""
    return sum((seen[i] - e) ** 2 / e for i, e in enumerate(expected))


def router(policy: PolicyMaker, regions: str, weights: list[float] | None = None) -> Router:
    """One endpoint per letter of `regions`; its id is its index."""
    weighed = zip(regions, weights or [1.0] * len(regions), strict=True)
    members = [Endpoint(str(i), "http://x", region, weight) for i, (region, weight) in enumerate(weighed)]
    return Router(members, policy(Random(11)), ManualClock(), Random(12))


def picks(r: Router, times: int) -> list[int]:
    """Indices of the endpoints picked; no request ends."""
    return [int(r.route(FACTS).endpoint.id) for _ in range(times)]


@pytest.mark.parametrize("weights", [[1, 1, 1, 1, 1], [1, 2, 3, 4, 5], [1, 1, 1, 1, 400]])
def test_random_follows_the_weights(weights: list[float]) -> None:
    """Chi-square at 4 degrees of freedom stays below 18.5 (p = 0.001), by rejection or by the exact draw."""
    seen = Counter(picks(router(RandomChoice, "xxxxx", weights), 20_000))
    assert chi_square(seen, [20_000 * w / sum(weights) for w in weights]) < 18.5


def test_random_falls_back_to_an_exact_draw() -> None:
    """With weights a million apart and the heaviest unavailable, rejection sampling ends in one exact draw."""
    r = router(RandomChoice, "xxx", [1, 3, 1e6])
    r.set_healthy("2", False)
    seen = Counter(picks(r, 4000))
    assert chi_square(seen, [1000, 3000]) < 10.8


def test_drawing_two_is_without_replacement_and_even() -> None:
    """All 20 ordered pairs of five are equally frequent (chi-square, 19 degrees, p = 0.001: 43.8); equal pairs
    never."""
    rng = Random(5)
    seen = Counter(draw_two(5, rng.random) for _ in range(20_000))
    assert all(a != b for a, b in seen)
    assert len(seen) == 20
    assert sum((n - 1000) ** 2 / 1000 for n in seen.values()) < 43.8


def test_round_robin_order_survives_a_change_of_health() -> None:
    """From a random start; none is skipped or repeated."""
    r = router(RoundRobin, "xxxxx")
    first = picks(r, 1)[0]
    assert picks(r, 5) == [(first + i) % 5 for i in range(1, 6)]
    gone = (first + 1) % 5
    r.set_healthy(str(gone), False)
    assert picks(r, 4) == [i for i in ((first + k) % 5 for k in range(1, 6)) if i != gone]


def test_region_round_robin_gives_regions_equal_shares() -> None:
    """A region of one endpoint gets as much as a region of three."""
    seen = Counter(picks(router(RegionRoundRobin, "xyyy"), 600))
    assert [seen[i] for i in range(4)] == [300, 100, 100, 100]


def test_region_round_robin_survives_the_loss_of_a_region() -> None:
    """The others share its requests; when it returns it is next."""
    r = router(RegionRoundRobin, "xyz")
    picks(r, 3)
    r.set_healthy("1", False)
    assert sorted(picks(r, 4)) == [0, 0, 2, 2]
    r.set_healthy("1", True)
    assert picks(r, 1) == [1]


def test_single_region_leaves_only_when_none_is_available() -> None:
    r = router(lambda rng: SingleRegion(rng, region="y"), "xyyx")
    assert set(picks(r, 50)) == {1, 2}
    for i in ("1", "2"):
        r.set_healthy(i, False)
    assert set(picks(r, 50)) == {0, 3}


@pytest.mark.parametrize(
    ("options", "share", "error"), [({"explore": 0.0}, 1 / 3, 0.02), ({"power": 20.0}, 0.015, 0.006)]
)
def test_share_of_latency_weighted(options: dict[str, float], share: float, error: float) -> None:
    """Twice the latency, half the share. Exploration reaches endpoints whose weight is next to nothing: power 20 at
    twice the latency is one in a million."""
    r = router(lambda rng: LatencyWeighted(rng, **options), "xx")
    for state, latency in zip(r.states, (0.1, 0.2), strict=True):
        state.latency.record(latency, 0, 0.0)
    seen = Counter(r.policy.pick(FACTS, r.available, 0.0).id for _ in range(9000))
    assert seen["1"] / 9000 == pytest.approx(share, abs=error)


class RecordingPolicy(RandomChoice):
    """An inner policy that records its hooks' calls."""

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        super().members_changed(states, now)
        calls.append(("members", tuple(state.id for state in states)))

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        calls.append(("observe", state.id))

    def tick(self, now: float) -> None:
        calls.append(("tick", now))


calls: list[tuple[str, object]] = []


def test_inner_policy_gets_events_of_its_region_only() -> None:
    """Members and outcomes of its own region, and every tick."""
    calls.clear()
    r = router(lambda rng: SingleRegion(rng, region="y", inner=RecordingPolicy), "xyyx")
    assignment = r.route(FACTS)
    r.settle(assignment, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
    r.tick()
    r.replace([state.endpoint for state in r.states[:2]])
    assert calls == [
        ("members", ("1", "2")),
        ("observe", assignment.endpoint.id),
        ("tick", 0.0),
        ("members", ("1",)),
    ]
