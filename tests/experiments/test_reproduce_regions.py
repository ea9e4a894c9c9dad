"""`reproduce regions`: answers and bounds made from results, and a quick run with processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.report.canvas import to_png
from experiments.reproduce.regions import Regions, answers, middles, rankings
from experiments.reproduce.regions_runs import (
    OURS,
    PLACES,
    QUICK,
    ROUND_TRIPS,
    SOURCE_POLICIES,
    AddedLatency,
    Concurrency,
    Overload,
    PolicyRun,
    RegionsPlan,
    Results,
    Throughput,
    Unloaded,
    concurrency_of,
    policy_scenario,
    shares,
)
from experiments.run_data import Kind
from tests.experiments.reproduced import quick_run
from tests.support.runs import hand_made

SPANS = {"random": 9.0, "random (batch 10)": 78.0, "single-region": 16.0, "round-robin": 8.5}
SPANS |= {"region-round-robin": 8.4, OURS: 8.2}


def results() -> Results:
    """A result in every part."""
    samples = hand_made([0.37, 0.39]).samples
    return Results(
        unloaded=[Unloaded(place.worker, place.region, (0.6, 0.61), (0.02, 0.02)) for place in PLACES],
        workers=[(place.worker, samples) for place in PLACES],
        concurrency=[Concurrency(100, 3000, 0, 2.0, 2.4), Concurrency(1500, 3000, 300, 28.0, 30.0)],
        added=[AddedLatency(0.052, 0.0524, 0.085)] * 4,
        throughput=Throughput(7000.0, 60e-6),
        overloads=[Overload(1000, 3, 256, 0, (0.1, 0.2, 0.3))],
        policy_runs=[PolicyRun(policy, 0, span, 0) for policy, span in SPANS.items()],
    )


def regions_of(found: Results) -> Regions:
    reproduction = Regions(True)
    reproduction._results = found
    return reproduction


def test_every_question_is_answered_and_the_figure_is_drawn() -> None:
    found = dict(answers(results(), RegionsPlan()))
    assert len(found) == 9
    assert "0.40 ms" in found["What latency does the proxy add?"]
    assert "300 of 3000" in found["How many requests does one machine take?"]
    assert to_png(regions_of(results()).figure()).startswith(b"\x89PNG")


def test_without_results_there_are_no_answers_and_an_empty_figure() -> None:
    assert list(answers(Results(), RegionsPlan())) == []
    assert [*regions_of(Results()).verdicts()] == []
    assert to_png(regions_of(Results()).figure()).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("proxy", "is_met"), [([0.0525] * 4, True), ([0.0535] * 4, False), ([0.0520, 0.0542] * 10, None)]
)
def test_latency_is_added_by_less_than_a_millisecond_and_no_request_fails(
    proxy: list[float], is_met: bool | None
) -> None:
    """An interval that contains the bound is not judged."""
    added = [AddedLatency(0.052, one, 0.085) for one in proxy]
    found = replace(results(), added=added, overloads=[Overload(1000, 3, 256, 1, (0.1, 0.2, 0.3))])
    assert [verdict.is_met for verdict in regions_of(found).verdicts()][:3] == [is_met, False, True]


@pytest.mark.parametrize(
    ("changes", "met"), [({}, [True, True]), ({OURS: 8.9}, [True, False]), ({"random": 40.0}, [False, True])]
)
def test_order_of_policies(changes: dict[str, float], met: list[bool]) -> None:
    """It is judged by ratios within a block, so one block gives no verdict."""
    spans = {policy: [span, 1.01 * span, span] for policy, span in (SPANS | changes).items()}
    assert [verdict.is_met for verdict in rankings(spans)] == met
    assert [verdict.is_met for verdict in rankings({one: spans[one][:1] for one in spans})] == [None, None]
    assert list(rankings({OURS: [1.0], "random": [2.0]})) == []


def test_a_policy_whose_blocks_differ_is_not_judged() -> None:
    spans = {policy: [span, span] for policy, span in SPANS.items()} | {OURS: [7.0, 9.5]}
    assert [verdict.is_met for verdict in rankings(spans)] == [True, None]


def test_quick_has_every_row_of_the_source() -> None:
    assert set(SOURCE_POLICIES) < set(QUICK.policies)
    assert {500, 1500} <= set(QUICK.concurrency)
    assert 1000 in dict(QUICK.overloads)


def test_policy_spans_are_medians_over_blocks() -> None:
    policy_runs = [PolicyRun("random", block, span, 0) for block, span in enumerate((9.0, 1.0, 2.0))]
    found = Results(policy_runs=policy_runs[::-1])
    assert found.spans == {"random": [9.0, 1.0, 2.0]}
    assert middles(found) == {"random": 2.0}


def test_a_timeout_is_a_failure_and_has_no_latency() -> None:
    samples = hand_made([0.2, 0.4, 9.0], [Kind.OK, Kind.OK, Kind.TIMEOUT]).samples
    found = concurrency_of(2, samples, scale=0.1)
    assert (found.failed, found.requests) == (1, 3)
    assert (found.p50, found.max) == pytest.approx((3.0, 4.0))


def test_policies_run_in_the_packaged_scenario() -> None:
    scenario = policy_scenario(RegionsPlan())
    labels = {entry.label for entry in scenario.entries}
    assert labels == {*SOURCE_POLICIES, OURS, "latency-weighted", "least-in-flight"}
    assert scenario.load_of(scenario.entries[1]).batch == 10
    assert scenario.load.requests == 1500


def test_clients_share_the_requests() -> None:
    assert shares(10, 4) == [3, 3, 2, 2]


@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_quick_run(tmp_path: Path) -> None:
    """Every part is measured, the overload fails no request, and no call is faster than round trip and service."""
    found = quick_run("regions", tmp_path)
    assert [one["failed"] for one in found["overloads"]] == [0] * len(QUICK.overloads)
    assert {run["policy"] for run in found["policy_runs"]} == set(QUICK.policies)
    assert all(run["failed"] == 0 for run in found["policy_runs"])
    assert [one["requests"] for one in found["workers"].values()] == [QUICK.requests] * len(PLACES)
    for one in found["unloaded"]:
        assert all(took >= ROUND_TRIPS[one["region"]] + 0.019 for took in one["took"])
    assert len(found["added"]) == QUICK.added_blocks
    assert found["throughput"]["rate"] > 0
