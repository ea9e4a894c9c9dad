"""Calibration: rates of false verdicts and of planted differences found, in campaigns whose truth is known."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import cli
from benchmarks.calibration.methods import CONTROL, lasting
from benchmarks.calibration.queue import as_run, run_queues, scenario_of, sojourn
from benchmarks.calibration.rates import STRETCHED, CampaignSummaries, Rate, many, outcome, stretched
from experiments.run_data import Run
from experiments.scenario.files import load_scenario
from experiments.scenario.scenario import Entry, Scenario

pytestmark = pytest.mark.second_tier


def one_request(spread: float, scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    """Run of one request with a log-normal latency; `spread` is that of a pair. Takes less than a millisecond."""
    rng = np.random.default_rng([seed, order])
    taken = np.exp(rng.normal(-2, spread / np.sqrt(2), 1))
    return as_run(scenario, entry, block, order, seed, (np.zeros(1), taken, np.zeros(1, dtype=np.int64)))


def test_student_keeps_5_percent_of_false_verdicts_and_the_percentile_bootstrap_does_not() -> None:
    """100 campaigns of queues. Without an A/A control the percentile bootstrap exceeds 5 % by more than chance."""
    done = list(many(run_queues, scenario_of(8, 150, 4), None, range(100), 1))
    assert outcome(done, 8, "student", None).holds_level
    bare = [without_twin(campaign) for campaign in done]
    assert outcome(bare, 8, "percentile", None).false.interval[0] > 0.05
    assert outcome(bare, 8, "student", None).false.interval[0] < 0.05


def without_twin(campaign: CampaignSummaries) -> CampaignSummaries:
    """The outcome without an A/A pair."""
    entries = tuple(entry for entry in campaign.scenario.entries if entry.repeat_of is None)
    kept = tuple(run for run in campaign.plain if run.label != CONTROL)
    return CampaignSummaries(campaign.scenario.model_copy(update={"entries": entries}), kept, ())


@pytest.mark.timeout(300)
def test_eight_blocks_find_10_percent_and_make_no_false_verdicts() -> None:
    """1,000 campaigns of equals and as many with a planted 10 %: four rivals, an A/A control, and the noise of 60,000
    requests of a queue at 70 % load. Single runs of the baseline alone found 76.5 %.
    """
    done = list(many(partial(one_request, 0.063), scenario_of(8, 1, 4), 1.10, range(1000), 1))
    found = outcome(done, 8, "student", 1.10)
    assert found.spread == pytest.approx(0.063, rel=0.05)
    assert found.holds_level
    assert found.has_power
    assert found.wrong is not None
    assert found.wrong.value <= 0.05


def test_too_much_noise_misses_the_bound_on_what_is_found() -> None:
    """A difference that is not found is no false verdict."""
    done = list(many(partial(one_request, 0.30), scenario_of(8, 1, 4), 1.10, range(60), 1))
    found = outcome(done, 8, "student", 1.10)
    assert found.holds_level
    assert found.has_power is False


def test_stretched_run_has_stretched_percentiles() -> None:
    """Nothing else of the run changes."""
    scenario = scenario_of(8, 500, 1)
    run = run_queues(scenario, scenario.entries[1], 0, 1, 7)
    slower = stretched(run, 1.1)
    assert scenario.entries[1].label == STRETCHED
    assert np.percentile(slower.samples.latency, 99) == pytest.approx(
        1.1 * np.percentile(run.samples.latency, 99)
    )
    assert slower.samples.scheduled_at is run.samples.scheduled_at


def test_entries_share_arrivals_and_demand() -> None:
    """Common random numbers within a block; queues are drawn for each entry."""
    scenario = scenario_of(8, 200, 1)
    one, other, again = (
        run_queues(scenario, scenario.entries[0], 0, order, 5).samples for order in (0, 1, 0)
    )
    assert np.array_equal(one.scheduled_at, other.scheduled_at)
    assert not np.array_equal(one.worker, other.worker)
    assert np.array_equal(one.ended_at, again.ended_at)


def test_the_recursion_is_a_first_come_queue() -> None:
    """The second request waits for the first, the third finds the queue empty, the fourth is in another queue."""
    due, demand = np.array([0.0, 1.0, 6.0, 6.0]), np.array([2.0, 3.0, 1.0, 1.0])
    taken = sojourn(due, demand, np.array([0, 0, 0, 1]))
    assert taken.tolist() == [2.0, 4.0, 1.0, 1.0]


def test_queues_agree_with_the_closed_form() -> None:
    """M/M/1 at 0.7: the mean time is 1 / (1 - 0.7) demands."""
    scenario = scenario_of(8, 400_000, 1)
    run = run_queues(scenario, scenario.entries[0], 0, 0, 3)
    assert run.samples.latency.mean() == pytest.approx(0.010 / 0.3, rel=0.03)


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [(0, 200, 0.0, 0.0188), (10, 200, 0.0274, 0.0896), (200, 200, 0.9812, 1.0)],
)
def test_the_interval_of_a_rate(hits: int, total: int, low: float, high: float) -> None:
    """Wilson's interval, also at rates of 0 and 1."""
    assert Rate(hits, total).interval == pytest.approx((low, high), abs=1e-4)


def test_results_do_not_depend_on_the_number_of_jobs() -> None:
    scenario = scenario_of(8, 50, 1)
    one, two = (list(many(run_queues, scenario, 1.5, range(4), jobs)) for jobs in (1, 2))
    assert one == two


def test_scenario_is_shortened_to_a_number_of_requests() -> None:
    short = lasting(load_scenario("one-slow-worker"), 300)
    assert short.load.planned == 300
    assert lasting(load_scenario("regions"), 300).load.requests == 300


def test_campaigns_of_a_simulated_scenario() -> None:
    words = ["--campaigns", "2", "--scenario", "homogeneous", "--policy", "least-in-flight", "--jobs", "1"]
    size = ["--requests", "100", "--rivals", "1"]
    ran = CliRunner().invoke(cli, ["calibration", *words, *size], standalone_mode=False)
    assert ran.return_value == 0, ran.output
    assert "false verdicts ≤ 5 %" in ran.output


def test_command_writes_rates_and_checks_bounds(tmp_path: Path) -> None:
    """Two sizes and two methods are four rows; with 100 requests a difference of 10 % is not found."""
    runner, file = CliRunner(), tmp_path / "rates.json"
    size = ["--campaigns", "4", "--requests", "100", "--blocks", "8,9", "--jobs", "1", "--planted", "1.1"]
    ran = runner.invoke(
        cli,
        ["calibration", *size, "--methods", "student,sign-flip", "--json", str(file)],
        standalone_mode=False,
    )
    assert ran.return_value == 0, ran.output
    assert "MISSED" in ran.output
    rows = json.loads(file.read_text(encoding="utf-8"))["outcomes"]
    assert [(row["method"], row["blocks"]) for row in rows] == [
        ("student", 8), ("sign-flip", 8), ("student", 9), ("sign-flip", 9),
    ]  # fmt: skip
    assert runner.invoke(cli, ["calibration", *size, "--check"], standalone_mode=False).return_value == 1
