"""Reasons of policies by load: candidates and scores."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from policies import RequestFacts, Router, registry
from policies.contract import REGION, ManualClock, Trial, endpoints
from tests.support.traces import last, traced

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
    """The policy's own reasons only, and the picked endpoint has the winning score."""
    trial = Trial(lambda rng: registry.make(name, options, rng), endpoints(1, 2, 3))
    trace = traced(trial.router, keep=5000)
    trial.open_loop(30, 20)
    assert set(trace.counts) == reasons
    for explanation in trace.recent:
        assert explanation.picked is not None
        step = explanation.steps[-1]
        assert explanation.picked in step.candidates
        if wins is not None:
            scores = dict(zip(step.candidates, step.scores, strict=True))
            assert scores[explanation.picked] == pytest.approx(wins(scores.values()))


@pytest.mark.parametrize(
    ("name", "choices"),
    [("least-in-flight", 2), ("least-in-flight", 3), ("peak-ewma", 3), ("least-time", 3), ("c3", 3)],
)
def test_single_candidate_is_a_reason(name: str, choices: int) -> None:
    """Nothing is scored without a choice."""
    r = Router(endpoints(1), registry.make(name, {"choices": choices}, Random(1)), ManualClock(), Random(2))
    trace = traced(r)
    r.route(FACTS)
    assert last(trace).reasons == ("only-one",)
