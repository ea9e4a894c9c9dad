"""Policies by load say why: whom they considered, what each scored, and never anything that changes a run."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from policies import ReportedLoad, RequestFacts, Router, registry
from policies.contract import REGION, ManualClock, Trial, endpoints
from policies.endpoint.state import EndpointState
from policies.insight.explanation import Trace

FACTS = RequestFacts(region=REGION)

REASONS = [
    ("smooth-round-robin", {}, {"most-credit"}, max),
    ("edf-round-robin", {}, {"earliest-deadline"}, None),
    ("reported-load", {}, {"by-reports"}, None),
    ("least-in-flight", {"choices": 0}, {"tie", "less-loaded"}, min),
    ("least-in-flight", {"tie": "rate"}, {"tie", "less-loaded", "lower-rate"}, min),
    ("peak-ewma", {}, {"least-score"}, min),
    ("least-time", {}, {"least-score"}, min),
    ("c3", {}, {"least-score"}, min),
    ("prequal", {}, {"cold-quickest"}, min),
    ("join-idle-queue", {}, {"idle", "none-idle"}, None),
]


@pytest.mark.parametrize(("name", "options", "reasons", "wins"), REASONS)
def test_each_pick_is_explained(name: str, options: dict[str, Any], reasons: set[str], wins: Any) -> None:
    """By its own reasons only, and who was picked has the winning score in the last of them."""
    trial = Trial(lambda rng: registry.make(name, options, rng), endpoints(1, 2, 3))
    trace = Trace(keep=5000)
    trial.router.explain(trace)
    trial.open_loop(30, 20)
    assert set(trace.counts) == reasons
    for explanation in trace.recent:
        assert explanation.picked is not None
        step = explanation.steps[-1]
        assert explanation.picked in step.candidates
        if wins is not None:
            scores = dict(zip(step.candidates, step.scores, strict=True))
            assert scores[explanation.picked] == pytest.approx(wins(scores.values()))


@pytest.mark.parametrize(("name", "options", "reasons", "wins"), REASONS)
def test_explaining_changes_no_run(name: str, options: dict[str, Any], reasons: set[str], wins: Any) -> None:
    """The same seed gives the same run, explained or not."""
    logs = []
    for trace in (None, Trace()):
        trial = Trial(lambda rng: registry.make(name, options, rng), endpoints(1, 2, 3))
        trial.router.explain(trace)
        trial.open_loop(30, 20)
        logs.append(trial.log)
    assert logs[0] == logs[1]


def test_a_dry_pool_is_said_to_be_dry() -> None:
    """Somebody probes and nobody answers: the reasons of the less loaded of two follow."""
    r = Router(endpoints(1, 1, 1), registry.make("prequal", {}, Random(1)), ManualClock(), Random(2))
    asked: list[EndpointState] = []
    r.on_probe = asked.append
    r.route(FACTS)
    for state in r.states:
        r.probed(state, ReportedLoad(in_flight=9), 0.01, 0.0)
    trace = Trace()
    r.explain(trace)
    for _ in range(40):
        r.route(FACTS)
    assert trace.last is not None
    assert trace.last.reasons[0] == "no-probes"
    assert trace.last.reasons[1] in ("tie", "less-loaded")


@pytest.mark.parametrize("name", ["least-in-flight", "peak-ewma", "least-time", "c3"])
def test_the_only_one_is_said_to_be_that(name: str) -> None:
    """Nothing is scored where there is no choice."""
    r = Router(endpoints(1), registry.make(name, {"choices": 3}, Random(1)), ManualClock(), Random(2))
    trace = Trace()
    r.explain(trace)
    r.route(FACTS)
    assert trace.last is not None
    assert trace.last.reasons == ("only-one",)
