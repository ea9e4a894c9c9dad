"""Explanations of picks: complete, true, and without effect on the picks."""

from __future__ import annotations

import json
from itertools import product
from random import Random
from typing import Any

import pytest

from policies import Available, Endpoint, EndpointState, RequestFacts, Router, Trace, make, registry
from policies.contract import REGION, ManualClock, Trial, endpoints
from policies.endpoint.ejection import EjectionRules
from policies.facts import OutcomeKind
from policies.insight.explanation import MOST_REASONS, OTHER
from policies.routing.affinity import ByRendezvous, Sticky
from tests.policies.pools import Pool, mark_unhealthy
from tests.support.expected_policies import EXPECTED
from tests.support.tables import reasons_of
from tests.support.traces import last, traced


def router(name: str, members: list[Endpoint], **options: Any) -> tuple[Router, Trace]:
    """A router with tracing on."""
    found = Router(members, make(name, options, Random(1)), ManualClock(), Random(2))
    trace = traced(found)
    return found, trace


def reasons(router: Router, trace: Trace, region: str | None = REGION) -> tuple[str, ...]:
    """Reasons of the next pick."""
    router.route(RequestFacts(region=region))
    return last(trace).reasons


RUNS: list[tuple[str, dict[str, Any], set[str] | None]] = [
    ("least-in-flight", {"choices": 0}, {"tie", "less-loaded"}),
    ("least-in-flight", {"tie": "rate"}, {"tie", "less-loaded", "lower-rate"}),
    ("latency-weighted", {"explore": 1.0}, {"explored"}),
    ("latency-weighted", {"explore": 0.0}, {"quicker-likelier"}),
    ("prequal", {}, {"cold-quickest", "all-hot-least-loaded"}),
    ("join-idle-queue", {}, {"idle", "none-idle"}),
    *((name, expected.options, None) for name, expected in EXPECTED.items()),
]
"""Policy, options, and its reasons; None: all of its own module but UNREACHED, and none that it does not state."""

UNREACHED = {
    *("only-one", "in-turn", "lower-rate", "outside-window", "no-probes", "region-unavailable"),
    *("spilled-over", "cheapest-region", "explored", "passed-on", "by-headroom"),
}
"""Reasons that some policy of theirs has for no pick among three endpoints of one region and of unequal weights."""

BY_LEAST = ("least-score", "tie", "less-loaded", "lower-rate", "cold-quickest", "all-hot-least-loaded")
WINS: dict[str, Any] = {**dict.fromkeys(BY_LEAST, min), "most-credit": max}
"""Reason -> which of its scores wins, where one does."""


@pytest.mark.parametrize(("name", "options", "wanted"), RUNS)
def test_each_pick_is_explained_and_tracing_changes_none(
    name: str, options: dict[str, Any], wanted: set[str] | None
) -> None:
    """The same seed gives the same run with and without a trace, and each pick has reasons of its policy only, among
    whose candidates it is, with the winning score."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        return 0.05, OutcomeKind.RESET if state.id == f"{REGION}-0" and now < 2 else OutcomeKind.OK

    runs = [Trial(lambda rng: make(name, options, rng), endpoints(1, 2, 3), answer) for _ in "ab"]
    trace = traced(runs[1].router, keep=600)
    for run in runs:
        run.open_loop(100, 6)
    assert runs[0].log == runs[1].log
    assert trace.picks == len(runs[1].log)
    assert sum(trace.counts.values()) >= trace.picks
    noted = set(trace.counts) - {"look"}
    stated = reasons_of(registry.TABLE[name])
    assert noted <= {code for _, _, code, _ in stated}, "a reason is a constant with a docstring: 'Reason: …'"
    assert "only-one" not in noted
    if wanted is not None:
        assert noted == wanted
    elif not getattr(registry.TABLE[name], "reads_prompts", False):  # these requests have no prompt
        own = {code for module, _, code, _ in stated if module == registry.TABLE[name].__module__}
        assert own - UNREACHED <= noted
    for one in trace.recent:
        assert one.picked in [state for step in one.steps for state in step.candidates]
        step = [step for step in one.steps if step.reason != "look"][-1]
        if step.reason in WINS:
            scores: dict[Any, float] = dict(zip(step.candidates, step.scores, strict=True))
            assert scores[one.picked] == pytest.approx(WINS[step.reason](scores.values()))


@pytest.mark.parametrize(
    ("name", "choices"),
    [("least-in-flight", 2), ("least-in-flight", 3), ("peak-ewma", 3), ("least-time", 3), ("c3", 3)],
)
def test_single_candidate_is_a_reason(name: str, choices: int) -> None:
    """Nothing is scored without a choice."""
    assert reasons(*router(name, endpoints(1), choices=choices)) == ("only-one",)


def test_tracing_switched_off_records_nothing() -> None:
    """Neither the policy nor its inner policies write to the trace."""
    found, trace = router("region-round-robin", endpoints(1, 1))
    found.route(RequestFacts())
    found.explain(None)
    found.route(RequestFacts())
    assert (trace.picks, found.trace) == (1, None)
    assert trace.counts == {"region-in-turn": 1, "in-turn": 1}


def test_new_policy_writes_to_the_same_trace() -> None:
    found, trace = router("random", endpoints(1, 1))
    assert reasons(found, trace) == ("at-random",)
    found.set_policy(make("round-robin", {}, Random(1)))
    assert reasons(found, trace) == ("in-turn",)
    assert trace.picks == 2


def test_inner_policies_explain_too() -> None:
    """Whether they were created before tracing began or after."""
    members = [*endpoints(1, 1), *endpoints(1, 1, region="there")]
    found, trace = router("region-round-robin", members)
    found.explain(None)
    found.route(RequestFacts())
    found.explain(trace)
    assert [reasons(found, trace) for _ in range(2)] == [("region-in-turn", "in-turn")] * 2


def test_scores_are_the_compared_values() -> None:
    """Loads per weight, of which the smaller is picked; equal ones are a tie."""
    found, trace = router("least-in-flight", endpoints(1, 2))
    for state, load in zip(found.states, (1, 4), strict=True):
        state.in_flight = load
    assert reasons(found, trace) == ("less-loaded",)
    scores = dict(zip(last(trace).steps[0].candidates, last(trace).steps[0].scores, strict=True))
    assert scores == {found.states[0]: 1.0, found.states[1]: 2.0}
    assert last(trace).picked is found.states[0]
    assert reasons(found, trace) == ("tie",)


def test_reasons_of_the_region_choice() -> None:
    """At home, spilled over, without a home, with one region left, and exploring a stale region."""
    members = [*endpoints(1, 1), *endpoints(1, 1, region="there")]
    found, trace = router("region-aware", members, explore=0.0)
    for state in found.states:
        state.latency.record(0.1, 0, 0.0)
    assert reasons(found, trace)[0] == "home"
    for state in found.states[:2]:
        state.latency.record(0.5, 0, 0.0)
        state.in_flight = 9
    assert reasons(found, trace)[0] == "spilled-over"
    home, other = last(trace).steps[0].scores
    assert last(trace).steps[0].candidates == (REGION, "there")
    assert home > other
    assert reasons(found, trace, region=None)[0] == "cheapest-region"
    found.replace(members[:2])
    assert reasons(found, trace)[0] == "home"
    found, trace = router("region-aware", members, explore=1.0)
    assert reasons(found, trace) == ("explored",)


def test_single_region_explains_an_unavailable_region() -> None:
    members = [*endpoints(1), *endpoints(1, region="there")]
    found, trace = router("single-region", members, region="there")
    assert reasons(found, trace) == ("its-region", "only-one")
    found.set_enabled("there-0", False)
    assert reasons(found, trace) == ("region-unavailable", "only-one")


def test_session_affinity_explains_kept_and_moved() -> None:
    """Requests without a key are explained by the inner policy alone."""
    sticky = Sticky(make("round-robin", {}, Random(1)), ByRendezvous())
    found = Router(endpoints(1, 1), sticky, ManualClock(), Random(1))
    trace = traced(found)
    seen = []
    for key, attempt in product(("a key", None), (0, 1)):
        tried = frozenset([f"{REGION}-0", f"{REGION}-1"][:attempt])
        found.route(RequestFacts(key=key, attempt=attempt, tried=tried))
        seen.append(last(trace).reasons)
    assert seen[0] == ("kept",)
    assert seen[1] in {("kept",), ("moved",)}
    assert seen[2:] == [("in-turn",)] * 2


class FaultyPolicy:
    """Misbehaves as `fault` names."""

    def __init__(self, clock: ManualClock, fault: str) -> None:
        self._clock = clock
        self._fault = fault

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        if self._fault == "fallback-raised":
            raise ValueError("on purpose")
        if self._fault == "fallback-too-slow":
            self._clock.time += 1.0
        if self._fault == "fallback-not-on-offer":
            return EndpointState(Endpoint("stranger", "http://x", REGION))
        return available[0]


@pytest.mark.parametrize("fault", ["fallback-raised", "fallback-too-slow", "fallback-not-on-offer"])
def test_fallback_pick_explains_the_fault_and_the_pick(fault: str) -> None:
    """The code of the fault, then the reason of the fallback."""
    clock = ManualClock()
    found = Router(endpoints(1, 1), FaultyPolicy(clock, fault), clock, Random(1), cpu=clock.now)
    trace = traced(found)
    reasons(found, trace)  # after a first slow pick the next ones are measured
    assert reasons(found, trace)[-2:] == (fault, "less-loaded")
    picked = last(trace).picked
    assert picked is not None
    assert picked.id.startswith(REGION)
    assert trace.counts[fault] == found.fallback_picks == 2 - (fault == "fallback-too-slow")


def test_policy_without_notes_is_explained_as_picked() -> None:
    """As one of another package that writes no notes."""
    found = Router(endpoints(1, 1), FaultyPolicy(ManualClock(), ""), ManualClock(), Random(1))
    trace = traced(found)
    assert reasons(found, trace) == ("picked",)


def test_panic_is_a_reason() -> None:
    """An unhealthy endpoint is picked because too many are unhealthy."""
    pool = Pool(4)
    trace = traced(pool.router)
    mark_unhealthy(pool, ("a0", "a1", "a2"))
    pool.named.name = "a1"
    assert reasons(pool.router, trace) == ("picked", "panic")
    pool.named.name = "a3"
    assert reasons(pool.router, trace) == ("picked",)


def test_trial_request_is_a_reason() -> None:
    """A second after its last failure, one request ignores the penalty; the next does not."""
    pool = Pool(2, rules=EjectionRules(failures=0, success_rate=0.0))
    trace = traced(pool.router)
    pool.ends("a0", *[OutcomeKind.RESET] * 3)
    assert last(trace).reasons == ("picked",)
    pool.clock.time += 3.0
    seen = [reasons(pool.router, trace) for _ in range(3)]
    assert seen == [("picked", "look"), ("picked",), ("picked",)]


def test_explanation_as_text_and_as_json() -> None:
    """One line, and JSON without the key; infinite scores are null."""
    found, trace = router("least-in-flight", endpoints(1, 1))
    found.route(RequestFacts(key="secret", region="emea"))
    names = [state.id for state in last(trace).steps[0].candidates if isinstance(state, EndpointState)]
    assert str(trace.last) == f"tie({names[0]}=0 {names[1]}=0) -> {names[0]}"
    trace.note("odd", ("emea", "us"), (float("inf"),))
    shown = json.loads(json.dumps(last(trace).as_dict(), allow_nan=False))
    assert "secret" not in json.dumps(shown)
    assert (shown["picked"], shown["has_key"], shown["offered"]) == (names[0], True, 2)
    odd = {"reason": "odd", "candidates": [{"id": "emea", "score": None}, {"id": "us", "score": None}]}
    assert shown["steps"][1] == odd
    assert str(trace.last).endswith("odd(emea=inf us) -> " + names[0])


def test_reasons_that_are_counted_are_bounded() -> None:
    """Of a policy that writes a number into them; those that are known by then are counted on."""
    trace = Trace()
    for number in range(2 * MOST_REASONS):
        trace.note(f"queue-{number}", [Endpoint("a", "http://a", REGION)])
        trace.note("known")
    assert len(trace.counts) == MOST_REASONS + 1
    assert (trace.counts[OTHER], trace.counts["known"]) == (MOST_REASONS + 1, 2 * MOST_REASONS)


def test_trace_keeps_the_latest_explanations() -> None:
    found = Router(endpoints(1, 1), make("round-robin", {}, Random(1)), ManualClock(), Random(1))
    trace = traced(found, keep=3)
    for _ in range(5):
        found.route(RequestFacts())
    assert len(trace.recent) == 3
    assert trace.recent[-1] is trace.last
    assert trace.picks == 5
