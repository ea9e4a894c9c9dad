"""Parts of costs in explanations: those of the default policy add up, and texts and JSON name them."""

from __future__ import annotations

import json
import re
from math import inf, nan
from random import Random

import pytest

from policies import Available, Endpoint, EndpointState, OutcomeKind, RequestFacts, Router, Trace
from policies.contract import ManualClock, Trial, endpoints
from policies.insight.explanation import Cost
from policies.steelyard.costs import PARTS
from policies.steelyard.policy import Steelyard
from tests.support.documentation import text_of
from tests.support.steelyard_routers import Connections
from tests.support.traces import last, traced

PICKED = Cost("us-1", 0.1, {"distance": 0.09, "service": 0.02, "margin": -0.01, "risk": 1e-9})


class Priced:
    """A policy of a user that gives the parts of its costs."""

    trace: Trace | None = None

    def __init__(self, *parts: dict[str, float]) -> None:
        self.parts = parts

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        if self.trace is not None:
            scores = [sum(each.values()) for each in self.parts]
            self.trace.note("priced", available, scores, self.parts)
        return available[0]


def explained(*parts: dict[str, float]) -> Trace:
    members = [Endpoint(name, f"http://{name}", "r") for name in ("a", "b", "c", "d", "e", "f")[: len(parts)]]
    r = Router(members, Priced(*parts), ManualClock(), Random(1))
    trace = traced(r)
    r.route(RequestFacts())
    return trace


def test_parts_of_the_default_policy_add_up_to_its_costs() -> None:
    """Through a start, failures, a full queue, an overload and recoveries. Each part occurs, in its order."""
    policy = Steelyard(Random(1), explore=0.0, prices={"away": 0.01})
    rng, trace, seen, free = Random(5), Trace(10_000), set[str](), dict[str, float]()

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        if state.id == "here-0" and state.in_flight == 12:
            policy._least_cost._estimate(state).reject(12, now)
        state.connections = Connections(rng.random() < 0.7, round_trip=0.004, connect_time=0.03)
        slow = 4.0 if state.id == "here-1" and now % 10.0 < 2.0 else 1.0
        free[state.id] = max(now, free.get(state.id, 0.0)) + slow * rng.expovariate(60.0)
        kind = OutcomeKind.RESET if rng.random() < 0.02 else OutcomeKind.OK
        seconds = free[state.id] - now
        return (seconds, kind) if seconds < 1.0 else (1.0, OutcomeKind.TIMEOUT)

    members = [*endpoints(1, 1, 2), *endpoints(1, region="away")]
    trial = Trial(lambda _: policy, members, answer)
    trial.router.explain(trace)
    for rate, seconds in ((8000, 0.02), (80, 5), (400, 4), (80, 20)):
        trial.open_loop(rate, seconds)
    assert trial.rejected_at
    for step in (step for pick in trace.recent for step in pick.steps if step.parts):
        for score, parts in zip(step.scores, step.parts, strict=True):
            assert sum(parts.values()) == pytest.approx(score, rel=1e-9)
            assert list(parts) == [name for name in PARTS if parts.get(name)]
            seen |= set(parts)
    assert seen == set(PARTS)


@pytest.mark.parametrize(
    ("seconds", "parts", "text"),
    [
        (0.115, {"distance": 0.09, "service": 0.023, "failure": 0.002}, "15 ms more: 10 margin, 3 service, 2 failure"),
        (0.125, {"service": 0.02, "wait": 0.105}, "25 ms more: 105 wait, 10 margin, but 90 less distance"),
        (0.098, {**PICKED.parts, "service": 0.0182, "risk": 0.0}, "2 ms less: 1.8 service"),
        (0.1, {"distance": 0.1}, "the same"),
        (inf, {"wait": inf}, "inf ms more: inf wait"),
    ],
)  # fmt: skip
def test_comparison_names_what_makes_another_dearer(
    seconds: float, parts: dict[str, float], text: str
) -> None:
    assert PICKED.compared(Cost("eu-2", seconds, parts)) == f"eu-2 costs {text}"
    assert PICKED.compared(Cost("eu-2", nan, parts)) == ""


def test_sum_in_milliseconds() -> None:
    """Whole ones from 10 on; what rounds to nothing is left out."""
    assert str(PICKED) == "us-1: 90 distance + 20 service - 10 margin = 100 ms"
    assert str(Cost("x", 0.00996, {"service": 0.00949, "wait": nan})) == "x: 9.5 service + nan wait = 10 ms"
    assert str(Cost("x", 0.0, {"service": 0.0})) == "x: 0 ms"


def test_parts_of_a_users_policy() -> None:
    """The picked endpoint comes first, then the others by cost; the parts of the first four are named."""
    trace = explained({"rent": 0.03}, {"rent": 0.09}, {"rent": 0.02, "fuel": 0.02}, *[{"rent": 0.05}] * 3)
    assert trace.last is not None
    assert trace.last.text == (
        "priced:\n  a: 30 rent = 30 ms\n  c: 20 rent + 20 fuel = 40 ms\n  d: 50 rent = 50 ms\n"
        "  e: 50 rent = 50 ms\n  2 more from 50 ms\nc costs 10 ms more: 20 fuel, but 10 less rent"
    )
    assert str(explained({"rent": 0.03}, {"rent": 0.04}).last) == (
        "priced(a: 30 rent = 30 ms; b: 40 rent = 40 ms) -> a; b costs 10 ms more: 10 rent"
    )


def test_bad_parts_are_null_in_json() -> None:
    """As are their scores; endpoints without parts have none."""
    trace = explained({"rent": nan, "fuel": 0.01}, {"rent": -inf}, {})
    shown = json.loads(json.dumps(last(trace).as_dict(), allow_nan=False))
    assert shown["steps"][0]["candidates"] == [
        {"id": "a", "score": None, "parts": {"rent": None, "fuel": 0.01}},
        {"id": "b", "score": None, "parts": {"rent": None}},
        {"id": "c", "score": 0},
    ]
    assert (shown["comparison"], last(trace).text.count("\n")) == ("", 2)


def test_every_part_is_explained() -> None:
    """In the derivation of docs/policies.md or its table of parts, and no other is."""
    section = text_of("docs/policies.md").partition("name the parts for each endpoint compared")[2]
    section = section.partition("Worked examples")[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    sentence = re.findall(r"`(\w+)`", section.partition("| part |")[0])
    assert sorted([*sentence, *rows]) == sorted(PARTS)
