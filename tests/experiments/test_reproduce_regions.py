"""The evaluation of a unit before three regions: what is made of measurements, and one short sitting with processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.report.canvas import to_png
from experiments.reproduce.answers import answers, bounds, rankings
from experiments.reproduce.evaluation import (
    FIVE,
    OURS,
    PLACES,
    QUICK,
    Added,
    Calm,
    Crowd,
    Evaluation,
    Load,
    Overload,
    PolicyRun,
    Setup,
    spans_of,
)
from experiments.reproduce.evaluation_runs import crowd_of
from experiments.reproduce.overload import shares
from experiments.reproduce.policy_runs import scenario_of
from experiments.reproduce.regions_figure import regions_figure
from experiments.stats.samples import Kind, Samples
from tests.experiments.reproduced import quick_sitting

SPANS = {"random": 9.0, "random, batch 10": 78.0, "single-region": 16.0, "round-robin": 8.5}
SPANS |= {"region-round-robin": 8.4, OURS: 8.2}


def samples_of(seconds: list[float], kinds: list[Kind]) -> Samples:
    """Requests that were all due at once."""
    zeros = np.zeros(len(seconds))
    whole = np.zeros(len(seconds), dtype=np.int64)
    return Samples(
        scheduled_at=zeros,
        sent_at=zeros,
        first_byte_at=np.array(seconds),
        ended_at=np.array(seconds),
        status=whole + 200,
        kind=np.array(kinds, dtype=np.int64),
        worker=whole,
        region=whole,
        sequence=np.arange(len(seconds), dtype=np.int64),
        attempts=whole,
    )


def evaluation() -> Evaluation:
    """Something in every part."""
    samples = samples_of([0.37, 0.39], [Kind.OK, Kind.OK])
    return Evaluation(
        calm=[Calm(place.worker, place.region, (0.6, 0.61), (0.02, 0.02)) for place in PLACES],
        machines=[(place.worker, samples) for place in PLACES],
        crowds=[Crowd(100, 3000, 0, 2.0, 2.4), Crowd(1500, 3000, 300, 28.0, 30.0)],
        added=[Added(0.052, 0.0524, 0.085)] * 4,
        load=Load(7000.0, 60e-6),
        crushes=[Overload(1000, 3, 256, 0, (0.1, 0.2, 0.3))],
        policy_runs=[PolicyRun(label, 0, span, 0) for label, span in SPANS.items()],
    )


def test_every_question_has_an_answer_and_the_figure_is_drawn() -> None:
    found = evaluation()
    told = dict(answers(found, Setup()))
    assert len(told) == 9
    assert "0.40 ms" in told["What latency does the forwarding unit add?"]
    assert "1500 are not: 300 of 3000" in told["How many requests does one machine take?"]
    assert to_png(regions_figure(found)).startswith(b"\x89PNG")


def test_what_was_not_measured_is_not_answered() -> None:
    assert list(answers(Evaluation(), Setup())) == []
    assert bounds(Evaluation(), Setup()) == []
    assert to_png(regions_figure(Evaluation())).startswith(b"\x89PNG")


@pytest.mark.parametrize(("unit", "is_met"), [(0.0525, True), (0.0535, False)])
def test_the_unit_is_held_to_a_millisecond(unit: float, is_met: bool) -> None:
    found = replace(evaluation(), added=[Added(0.052, unit, 0.085)] * 4)
    assert bounds(found, Setup())[0].is_met is is_met


def test_a_crowd_that_hides_the_millisecond_is_not_judged() -> None:
    """Half of the visits far above the bound, half below: nothing can be said."""
    mixed = [Added(0.052, 0.0523, 0.085), Added(0.052, 0.0550, 0.085)] * 10
    assert bounds(replace(evaluation(), added=mixed), Setup())[0].is_met is None


def test_one_failed_request_of_the_crush_is_a_miss() -> None:
    found = replace(evaluation(), crushes=[Overload(1000, 3, 256, 1, (0.1, 0.2, 0.3))])
    assert [verdict.is_met for verdict in bounds(found, Setup())][1] is False


def test_the_order_of_policies() -> None:
    assert [verdict.is_met for verdict in rankings(SPANS)] == [True, True]
    assert [verdict.is_met for verdict in rankings(SPANS | {OURS: 8.9})] == [True, False]
    assert [verdict.is_met for verdict in rankings(SPANS | {"random": 40.0})] == [False, True]
    assert rankings({OURS: 1.0, "random": 2.0}) == []


def test_policy_runs_are_summed_up_over_blocks() -> None:
    policy_runs = [PolicyRun("random", block, span, 0) for block, span in enumerate((9.0, 1.0, 2.0))]
    assert spans_of(policy_runs) == {"random": 2.0}


def test_a_crowd_counts_whoever_waited_too_long() -> None:
    found = crowd_of(2, samples_of([0.2, 0.4, 9.0], [Kind.OK, Kind.OK, Kind.TIMEOUT]), scale=0.1)
    assert (found.failed, found.requests) == (1, 3)
    assert (found.p50, found.most) == pytest.approx((3.0, 4.0))


def test_the_scenario_is_the_campaigns_own() -> None:
    scenario = scenario_of(Setup())
    assert {entry.label for entry in scenario.entries} == {*FIVE, OURS, "latency-weighted", "least-in-flight"}
    assert scenario.load_of(scenario.entries[1]).batch == 10
    assert scenario.load.requests == 1500


def test_clients_share_the_requests() -> None:
    assert shares(10, 4) == [3, 3, 2, 2]
    assert sum(shares(10_000, 1000)) == 10_000


@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_a_quick_sitting(tmp_path: Path) -> None:
    """Every part is measured, nothing fails before a unit short of descriptors, and none is faster than light."""
    found = quick_sitting("regions", tmp_path)
    assert [crush["failed"] for crush in found["crushes"]] == [0] * len(QUICK.crushes)
    assert {lap["label"] for lap in found["laps"]} == set(QUICK.labels)
    assert all(lap["failed"] == 0 for lap in found["laps"])
    assert [one["requests"] for one in found["machines"].values()] == [QUICK.requests] * len(PLACES)
    for calm in found["calm"]:
        trip = {"emea": 0.35, "us": 0.45, "asia": 0.58}[calm["region"]]
        assert all(took >= trip + 0.019 for took in calm["took"])
    assert len(found["added"]) == QUICK.blocks
    assert found["load"]["rate"] > 0
    assert (tmp_path / "regions.png").read_bytes().startswith(b"\x89PNG")
