"""Policies by score: each score computed by hand, and how it is forgotten."""

from __future__ import annotations

from collections import Counter
from math import exp
from random import Random
from typing import Any

import pytest

from policies import Endpoint, EndpointState, Outcome, OutcomeKind, ReportedLoad, RequestFacts, Router
from policies.algorithms.c3 import C3
from policies.algorithms.least_in_flight import LeastInFlight
from policies.algorithms.least_time import LeastTime
from policies.algorithms.peak_ewma import Cost, PeakEwma
from policies.algorithms.prequal import Prequal
from policies.contract import REGION, ManualClock, Trial, endpoints, rules
from policies.contract.spread import most_first
from policies.endpoint.per_endpoint import PerEndpoint
from policies.policy import Policy, PolicyMaker
from policies.selection.by_score import TRIAL_COST_S, ByScore

FACTS = RequestFacts(region=REGION)
E = exp(-1)


def router(policy: Policy, *weights: float) -> Router:
    return Router(endpoints(*weights), policy, ManualClock(), Random(12))


def answered(seconds: float, now: float, load: ReportedLoad | None = None, body: float = 0.0) -> Outcome:
    """A success with its first byte after `seconds` and the rest `body` seconds later."""
    return Outcome(OutcomeKind.OK, 200, now - seconds - body, now - body, now, reported_load=load)


def observe(
    policy: Any, r: Router, seconds: float, now: float, load: ReportedLoad | None = None
) -> EndpointState:
    """One success at the first endpoint."""
    state = r.states[0]
    policy.observe(state, answered(seconds, now, load), now)
    return state


# --- shared


class ByOrder(ByScore):
    """The last one is best; endpoints of the same order modulo `kinds` are equal."""

    def __init__(self, rng: Random, choices: int, kinds: int) -> None:
        super().__init__(rng, choices)
        self._kinds = kinds

    def score(self, state: EndpointState, now: float) -> float:
        return float(-(state.order % self._kinds))


@pytest.mark.parametrize(("choices", "share"), [(0, 1.0), (2, 2 / 5), (3, 3 / 5), (5, 1.0), (9, 1.0)])
def test_best_is_picked_as_often_as_it_is_drawn(choices: int, share: float) -> None:
    """Without replacement: d of n, and always if all are compared."""
    r = router(ByOrder(Random(3), choices, 5), *[1] * 5)
    found = sum(r.policy.pick(FACTS, r.available, 0.0).order == 4 for _ in range(4000)) / 4000
    assert found == pytest.approx(share, abs=0.03)


def test_equal_scores_are_picked_equally_often() -> None:
    """A full scan that took the first would send all to one endpoint."""
    r = router(ByOrder(Random(3), 0, 2), *[1] * 6)
    seen = Counter(r.policy.pick(FACTS, r.available, 0.0).order for _ in range(3000))
    assert sorted(seen) == [1, 3, 5]
    assert min(seen.values()) > 900


def test_per_endpoint_data_follows_the_members() -> None:
    """An endpoint that stays keeps its data; one that leaves, or changes address or region, does not."""
    pages: PerEndpoint[list[int]] = PerEndpoint(list)
    r = router(LeastInFlight(Random(1)), 1, 1, 1)
    one, two, three = r.states
    pages.members_changed(r.states, 0.0)
    for n, state in enumerate(r.states):
        pages[state].append(n)
    r.replace(
        [one.endpoint, Endpoint(two.id, "http://elsewhere", REGION), Endpoint("new", "http://x", REGION)]
    )
    pages.members_changed(r.states, 0.0)
    assert [pages[state] for state in r.states] == [[0], [], []]
    assert three not in pages


# --- peak EWMA


def test_peak_counts_at_once_and_decays() -> None:
    """c = x if x > c, else c·w + x·(1 − w), w = e^(−Δ/τ)."""
    cost = Cost()
    cost.sample(0.1, 0.0, 10.0)
    assert cost.seconds == 0.1
    cost.sample(0.5, 1.0, 10.0)
    assert cost.seconds == 0.5
    cost.sample(0.2, 11.0, 10.0)
    assert cost.seconds == pytest.approx(0.5 * E + 0.2 * (1 - E))
    cost.sample(0.1, 11.0, 10.0)  # at the same instant, less changes nothing
    assert cost.seconds == pytest.approx(0.5 * E + 0.2 * (1 - E))


def test_score_decays_with_time_and_reading_does_not_change_it() -> None:
    """c·e^(−Δ/τ)·(in flight + 1)/weight."""
    policy = PeakEwma(Random(1))
    state = observe(policy, router(policy, 2), 0.4, 0.0)
    for _ in range(3):
        assert policy.score(state, 0.0) == pytest.approx(0.2)
        assert policy.score(state, 10.0) == pytest.approx(0.2 * E)
    state.in_flight = 3
    assert policy.score(state, 20.0) == pytest.approx(0.8 * E * E)


def test_stale_peak_ewma_is_on_trial() -> None:
    """After 3 τ as without measurements: first while idle, last with a request in flight."""
    policy = PeakEwma(Random(1), decay=2.0)
    state = observe(policy, router(policy, 1), 0.4, 0.0)
    assert policy.score(state, 5.9) == pytest.approx(0.4 * exp(-2.95))
    assert policy.score(state, 6.0) == 0.0
    state.in_flight = 1
    assert policy.score(state, 6.0) == TRIAL_COST_S


def test_failures_are_charged_five_seconds_at_least() -> None:
    """A third of recent requests failed: a third of 5 s. After a second without a failure, one trial is free."""
    policy = PeakEwma(Random(1))
    r = router(policy, 1)
    for kind in (OutcomeKind.OK, OutcomeKind.OK, OutcomeKind.RESET):
        r.settle(r.route(FACTS), Outcome(kind, 200, 0.0, 0.1, 0.1))
    state = r.states[0]
    assert policy.score(state, 0.1) == pytest.approx(0.1 + 5 / 3)
    assert policy.score(state, 1.2) == pytest.approx(0.1 * exp(-0.11))


# --- least time


def test_least_time_mean_moves_by_alpha() -> None:
    """(mean)·(in flight + 1)/weight, a new sample counts a twentieth."""
    policy = LeastTime(Random(1))
    r = router(policy, 2)
    state = observe(policy, r, 0.1, 1.0)
    observe(policy, r, 0.5, 2.0)
    state.in_flight = 2
    assert policy.score(state, 2.0) == pytest.approx((0.1 + 0.05 * 0.4) * 3 / 2)


def test_least_time_without_samples_is_on_trial() -> None:
    """One trial at a time after 10 s, and its latency is the new mean."""
    policy = LeastTime(Random(1))
    r = router(policy, 1)
    state = observe(policy, r, 2.0, 0.0)
    assert policy.score(state, 9.9) == pytest.approx(2.0)
    assert policy.score(state, 10.0) == 0.0
    state.in_flight = 2
    assert policy.score(state, 10.0) == 2 * TRIAL_COST_S
    state.in_flight = 0
    observe(policy, r, 0.1, 10.5)
    assert policy.score(state, 10.5) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (PeakEwma(Random(1)), 0.2),
        (LeastTime(Random(1), until="first-byte"), 0.2),
        (LeastTime(Random(1), until="last-byte"), 3.2),
    ],
)
def test_latency_to_the_first_or_last_byte(policy: Any, seconds: float) -> None:
    """nginx's header and last_byte. To the first one, neither the size of a response nor the client's speed counts."""
    r = router(policy, 1)
    policy.observe(r.states[0], answered(0.2, 9.0, body=3.0), 9.0)
    assert policy.score(r.states[0], 9.0) == pytest.approx(seconds)


# --- C3


def test_c3_score() -> None:
    """Ψ = R − 1/μ + q̂³/μ with q̂ = 1 + os·w + q: R 0.3, 1/μ 0.1, two in flight from each of three balancers, a queue
    of four: 0.3 − 0.1 + 11³ × 0.1."""
    policy = C3(Random(1), balancers=3.0)
    state = observe(policy, router(policy, 1), 0.3, 1.0, ReportedLoad(in_flight=4, service_time=0.1))
    state.in_flight = 2
    assert policy.score(state, 1.0) == pytest.approx(0.2 + 11**3 * 0.1)
    policy.observe_probe(state, ReportedLoad(in_flight=14), 0.02, 1.0)
    assert policy.score(state, 1.0) == pytest.approx(0.2 + 14**3 * 0.1)  # the queue is 4 + 0.3 × 10


def test_c3_without_reports() -> None:
    """The least latency stands for the service time, and no queue is known; per weight."""
    policy = C3(Random(1))
    r = router(policy, 2)
    for latency in (0.1, 0.3):
        r.settle(r.route(FACTS), Outcome(OutcomeKind.OK, 200, 0.0, latency, latency))
    mean = 0.1 + 0.3 * 0.2
    r.states[0].in_flight = 3
    assert policy.score(r.states[0], 0.3) == pytest.approx(mean - 0.1 + 2**3 * 0.1)


def test_c3_forgets_after_10_s() -> None:
    """Then as without measurements: the latency prior, and one trial at a time."""
    policy = C3(Random(1))
    r = router(policy, 1)
    state = observe(policy, r, 3.0, 0.0, ReportedLoad(in_flight=40, service_time=2.0))
    assert policy.score(state, 10.0) == pytest.approx(r.states[0].latency_prior.latency(REGION, 10.0))
    state.in_flight = 1
    assert policy.score(state, 10.0) == TRIAL_COST_S
    state.in_flight = 0
    observe(policy, r, 0.2, 10.0, ReportedLoad(service_time=0.1))
    assert policy.score(state, 10.0) == pytest.approx(0.2)


def test_c3_cube_balances_queues_of_fast_and_slow_endpoints() -> None:
    """At services of 10 and 40 ms, least time has four times as many in flight at the fast one; C3 has 4^(1/3)."""
    policy = C3(Random(1), choices=0)
    r = router(policy, 1, 1)
    for state, service in zip(r.states, (0.01, 0.04), strict=True):
        policy.observe(state, answered(service, 0.0, ReportedLoad(service_time=service)), 0.0)
    for _ in range(1000):
        r.route(FACTS)
    quick, slow = (state.in_flight for state in r.states)
    assert quick / slow == pytest.approx(4 ** (1 / 3), abs=0.01)


# --- least in flight


def test_least_in_flight_of_all() -> None:
    """Failures are charged; a new endpoint gets all requests until it has as many as the others."""
    r = router(LeastInFlight(Random(1), choices=0), 1, 1, 2)
    assert Counter(r.route(FACTS).endpoint.id for _ in range(400)) == {
        "here-0": 100,
        "here-1": 100,
        "here-2": 200,
    }
    r.replace(endpoints(1, 1, 2, 1))
    assert {r.route(FACTS).endpoint.id for _ in range(100)} == {"here-3"}


def test_ties_broken_by_rate() -> None:
    """HAProxy's case in small: 160 idle endpoints, 100 000 requests, two choices. At random the busiest has a seventh
    more than its share; by the rate, a fiftieth."""
    excess = {}
    for tie in ("random", "rate"):
        policy = LeastInFlight(Random(1), tie=tie)
        r = router(policy, *[1] * 160)
        seen = Counter(policy.pick(FACTS, r.available, n / 20_000) for n in range(100_000))
        excess[tie] = max(seen.values()) / 625
    assert excess["random"] > 1.08
    assert excess["rate"] < 1.02


def test_ties_broken_by_rate_follow_weights() -> None:
    policy = LeastInFlight(Random(1), choices=0, tie="rate")
    r = router(policy, 1, 2, 3)
    seen = Counter(policy.pick(FACTS, r.available, n / 100).id for n in range(6000))
    assert [seen[f"here-{i}"] for i in range(3)] == pytest.approx([1000, 2000, 3000], rel=0.02)


def test_least_in_flight_counts_rates_only_if_configured() -> None:
    """Without `tie = "rate"` there is no hook."""
    assert not hasattr(LeastInFlight(Random(1)), "members_changed")
    assert hasattr(LeastInFlight(Random(1), tie="rate"), "members_changed")


@pytest.mark.parametrize(
    "options", [{"choices": 0}, {"choices": 0, "tie": "rate"}, {"choices": 5}, {"tie": "rate"}]
)
def test_options_of_least_in_flight_keep_the_contract(options: dict[str, Any]) -> None:
    """No starvation, failures do not attract, balancers begin anywhere."""

    def make(rng: Random) -> Policy:
        return LeastInFlight(rng, **options)

    for rule in (rules.avoids_starvation, rules.avoids_failing, rules.stays_within_the_set):
        rule(make)
    assert most_first(make, [1.0] * 6, 0) < 0.3


# --- slow endpoints


def slow_share(make: PolicyMaker, size: int) -> float:
    """The share of one that takes five times as long as the others."""
    trial = Trial(
        make, endpoints(*[1] * size), lambda state, now: (0.5 if state.order == 0 else 0.1, OutcomeKind.OK)
    )
    trial.open_loop(15 * size, 30)
    return trial.picked(since=5)["here-0"] / trial.picked(since=5).total()


@pytest.mark.parametrize(
    ("make", "size", "part"), [(PeakEwma, 4, 0.75), (LeastTime, 4, 0.75), (C3, 4, 0.75), (Prequal, 8, 0.5)]
)
def test_slow_endpoint_gets_less_than_by_requests_in_flight(
    make: PolicyMaker, size: int, part: float
) -> None:
    """In-flight counts show a slow endpoint only while it has requests; its latency shows it sooner. It gets some."""
    assert 0 < slow_share(make, size) < part * slow_share(LeastInFlight, size)
