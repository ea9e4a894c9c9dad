"""Canary: share of the traffic and separate statistics. Shadow: asked for every request, never followed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

from policies.algorithms.least_in_flight import LeastInFlight
from policies.algorithms.random_choice import RandomChoice
from policies.algorithms.region_aware import RegionAware
from policies.algorithms.round_robin import RoundRobin
from policies.contract import ManualClock, rules
from policies.endpoint.available import Available, AvailableByRegion
from policies.endpoint.state import EndpointState
from policies.errors import Overloaded
from policies.facts import Endpoint, Outcome, OutcomeKind, ReportedLoad, RequestFacts
from policies.insight.canary import Canary
from policies.insight.explanation import Trace
from policies.insight.shadow import FAULT_LIMIT, Shadow, Shadowed
from policies.routing.router import Router
from tests.support.expected_policies import EXPECTED, maker
from tests.support.traces import traced

ENDPOINTS = [Endpoint(f"w{number}", f"http://h:{number}", "r") for number in range(4)]


class Fixed:
    """Always picks the same endpoint, and records its hooks' calls."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: list[str] = []
        self.trace: Trace | None = None

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[self.number]

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        self.calls.append("observe")

    def observe_probe(self, *_: Any) -> None:
        self.calls.append("observe_probe")

    def tick(self, now: float) -> None:
        self.calls.append("tick")

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self.calls.append("members_changed")

    def probes(self, now: float) -> list[EndpointState]:
        self.calls.append("probes")
        return []


class Broken(Fixed):
    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        raise ValueError("no")

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        raise ValueError("no")


class Rejecting(Fixed):
    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        raise Overloaded


class Keeping(Fixed):
    """Picks the same endpoint, on offer or not."""

    states: Sequence[EndpointState]

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self.states[self.number]

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self.states = states


def router(policy: Any) -> Router:
    return Router(ENDPOINTS, policy, ManualClock(), Random(1))


def serve(routes: Router, times: int, seconds: float = 0.1) -> Counter[str]:
    """Route and settle so many requests, one after another; count the picks."""
    picked: Counter[str] = Counter()
    for _ in range(times):
        assignment = routes.route(RequestFacts())
        picked[assignment.state.id] += 1
        routes.settle(assignment, Outcome(OutcomeKind.OK, 200, 0.0, seconds, seconds))
    return picked


# --- canary


def test_canary_gets_its_share() -> None:
    picked = serve(router(Canary(("a", Fixed(0)), ("b", Fixed(1)), Random(1), share=0.1)), 10_000)
    assert picked["w1"] == pytest.approx(1000, abs=100)
    assert picked["w0"] + picked["w1"] == 10_000


def test_key_always_goes_to_the_same_policy() -> None:
    """Also in another process, with another seed."""
    ones = [Canary(("a", Fixed(0)), ("b", Fixed(1)), Random(s), share=0.3, by_key=True) for s in (1, 2)]
    states = AvailableByRegion(router(ones[0]).states)
    for number in range(300):
        facts = RequestFacts(key=f"user-{number}")
        picked = {one.pick(facts, states, 0.0).id for one in ones for _ in range(3)}
        assert len(picked) == 1
    assert ones[0].candidate.picks / (ones[0].candidate.picks + ones[0].live.picks) == pytest.approx(
        0.3, abs=0.08
    )


def test_path_decides_without_a_key() -> None:
    one = Canary(("a", Fixed(0)), ("b", Fixed(1)), Random(1), share=0.5, by_key=True)
    states = AvailableByRegion(router(one).states)
    picked = [
        {one.pick(RequestFacts(path=path), states, 0.0).id for _ in range(5)} for path in map(str, range(40))
    ]
    assert {len(each) for each in picked} == {1}
    assert len(set.union(*picked)) == 2


def test_outcomes_are_counted_per_arm() -> None:
    canary = Canary(("a", Fixed(0)), ("b", Fixed(1)), Random(1), share=0.5)
    routes = router(canary)
    for _ in range(100):
        assignment = routes.route(RequestFacts())
        arm = canary.take()
        assert arm is not None
        kind = OutcomeKind.OK if assignment.state.id == "w0" else OutcomeKind.TIMEOUT
        outcome = Outcome(kind, 200, 0.0, None, 0.25)
        routes.settle(assignment, outcome)
        arm.record(outcome, assignment.routed_at)
    live, candidate = canary.arms
    assert (live.outcomes[OutcomeKind.OK], candidate.outcomes[OutcomeKind.TIMEOUT]) == (
        live.picks,
        candidate.picks,
    )
    assert live.latency.quantile(0.5) == pytest.approx(0.25, rel=0.05)
    assert candidate.latency.count == 0
    assert canary.take() is None  # taken


def test_hooks_of_both_policies_are_called() -> None:
    one, other = Fixed(0), Fixed(1)
    routes = router(Canary(("a", one), ("b", other), Random(1), share=0.1))
    serve(routes, 3)
    routes.tick()
    assert one.calls == other.calls
    assert Counter(one.calls)["observe"] == 3


class Half(Canary):
    """Its candidate picks for half of the requests, and sees the outcomes of all, with reports."""

    def __init__(self, name: str, rng: Random) -> None:
        super().__init__(("live", RandomChoice(rng)), (name, maker(name)(rng)), rng, share=0.5)
        self._hook = getattr(self, "observe", lambda *_: None)
        self.observe = self._report

    def _report(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        outcome.reported_load = ReportedLoad(in_flight=3, service_time=0.05, utilization=0.9)
        self._hook(state, outcome, now)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", EXPECTED)
def test_outcomes_of_requests_that_others_picked_corrupt_no_count(name: str) -> None:
    for rule in (rules.stays_within_the_set, rules.avoids_starvation):
        rule(partial(Half, name))


@pytest.mark.parametrize("others", [RandomChoice, RegionAware])
def test_message_on_a_fault_names_the_policy_that_raised_and_the_hook(others: Any) -> None:
    """By the place in the code, also where both policies have the hook."""
    routes = router(Canary(("a", others(Random(1))), ("b", RegionAware(Random(2))), Random(3), share=0.1))
    for number in (0.5, "much"):
        outcome = Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1)
        outcome.reported_load = ReportedLoad(utilization=number)  # type: ignore[arg-type]
        routes.settle(routes.route(RequestFacts()), outcome)
    expected = r"policy Canary raised TypeError.* at \S+region_aware\.py:\d+ in observe"
    assert re.fullmatch(expected, str(routes.last_fault))


def test_hooks_absent_from_both_policies_are_absent() -> None:
    canary = Canary(("a", RandomChoice(Random(1))), ("b", LeastInFlight(Random(2))), Random(3), share=0.1)
    assert not any(hasattr(canary, name) for name in ("tick", "probes", "observe_probe"))


def test_canary_picks_have_a_reason_of_their_own() -> None:
    routes = router(Canary(("a", RoundRobin(Random(1))), ("b", Fixed(1)), Random(3), share=0.5))
    trace = traced(routes, keep=50)
    serve(routes, 50)
    assert 10 < trace.counts["canary"] < 40
    assert trace.counts["in-turn"] > 10, "the live policy's own reason"
    routes.explain(None)


# --- shadow


def test_shadow_picks_are_counted_and_not_followed() -> None:
    shadow = Shadow("b", Fixed(3))
    assert serve(router(Shadowed(Fixed(0), [shadow])), 50) == {"w0": 50}
    assert (shadow.seen, shadow.agreed, shadow.ratios["agreement"], shadow.ratios["skew"]) == (
        50,
        0,
        0.0,
        1.0,
    )
    assert (dict(shadow.picks), dict(shadow.beside)) == ({"w3": 50}, {"w0": 50})


def test_shadow_agreement_and_skew() -> None:
    """A random shadow agrees by chance; a fixed one is skewed."""
    same, blind = Shadow("fixed", Fixed(0)), Shadow("random", RandomChoice(Random(9)))
    serve(router(Shadowed(RandomChoice(Random(1)), [same, blind])), 4000)
    assert blind.ratios["agreement"] == pytest.approx(0.25, abs=0.03)
    assert blind.ratios["by_chance"] == pytest.approx(0.25, abs=0.02)
    assert blind.ratios["skew"] < 0.05
    assert same.ratios["skew"] == pytest.approx(0.75, abs=0.03)  # all of it to one of four


@pytest.mark.parametrize("tried", [frozenset(), frozenset({"w3"})])
def test_shadow_that_picks_what_is_not_on_offer_has_a_fault(tried: frozenset[str]) -> None:
    """An endpoint that cannot be selected, or that this request has tried."""
    shadow = Shadow("b", Keeping(3))
    routes = router(Shadowed(Fixed(0), [shadow]))
    if not tried:
        routes.states[3].is_selectable = False
    routes.route(RequestFacts(tried=tried))
    assert (shadow.seen, shadow.faults, dict(shadow.picks)) == (0, 1, {})
    assert "which was not on offer" in str(shadow.last_fault)


def test_shadow_that_rejects_has_no_fault() -> None:
    """Its rejections are counted among its picks."""
    shadow = Shadow("b", Rejecting(0))
    serve(router(Shadowed(Fixed(0), [shadow])), 2 * FAULT_LIMIT)
    assert (shadow.seen, shadow.faults, shadow.agreed) == (2 * FAULT_LIMIT, 0, 0)
    assert (dict(shadow.picks), shadow.ratios["skew"]) == ({"(rejected)": 2 * FAULT_LIMIT}, 1.0)


def test_shadow_does_not_change_a_seeded_run() -> None:
    plain = router(RandomChoice(Random(1)))
    shadowed = router(Shadowed(RandomChoice(Random(1)), [Shadow("b", RandomChoice(Random(2)))]))
    assert [plain.route(RequestFacts()).state.id for _ in range(200)] == [
        shadowed.route(RequestFacts()).state.id for _ in range(200)
    ]


def test_failing_shadow_is_disabled_and_costs_no_request() -> None:
    shadow = Shadow("broken", Broken(0))
    routes = router(Shadowed(Fixed(0), [shadow]))
    assert serve(routes, 200) == {"w0": 200}
    assert (routes.fallback_picks, routes.last_fault) == (0, None)
    assert shadow.faults == FAULT_LIMIT
    assert "ValueError" in str(shadow.last_fault)
    assert not shadow.is_asked


def test_shadow_gets_outcomes_but_no_probes_and_no_trace() -> None:
    live, shadow = Fixed(0), Fixed(1)
    routes = router(Shadowed(live, [Shadow("b", shadow)]))
    routes.on_probe = lambda state: None
    routes.explain(Trace())
    serve(routes, 3)
    assert "probes" in live.calls
    assert "probes" not in shadow.calls
    assert (live.trace is not None, shadow.trace) == (True, None)
    assert Counter(shadow.calls)["observe"] == 3
