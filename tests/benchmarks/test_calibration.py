"""Campaigns whose truth is known: how often is a verdict false, and how often is a difference found?"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import cli
from benchmarks.calibration.campaigns import STRETCHED, Campaign, many, stretched
from benchmarks.calibration.null_campaign import CONTROL, lasting
from benchmarks.calibration.queue import as_run, run_queues, scenario_of, sojourn
from benchmarks.calibration.rates import Rate, outcome
from experiments.errors import BadInputError
from experiments.scenario.files import load_scenario
from experiments.scenario.scenario import Entry, Scenario
from experiments.stats.samples import Run

pytestmark = pytest.mark.second_tier


def weather(spread: float, scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    """One request, and its latency is weather: log-normal, `spread` for a pair. Thousands of runs a second."""
    rng = np.random.default_rng([seed, order])
    taken = np.exp(rng.normal(-2, spread / np.sqrt(2), 1))
    return as_run(scenario, entry, block, order, seed, (np.zeros(1), taken, np.zeros(1, dtype=np.int64)))


def test_equals_are_rarely_ranked_and_the_old_interval_ranked_them_too_often() -> None:
    """100 campaigns of queues. With an A/A pair Student's keeps 5 %; with none to hide behind the percentile
    bootstrap is beyond it by more than chance, and Student's is not."""
    done = list(many(run_queues, scenario_of(8, 150, 4), None, range(100), 1))
    assert outcome(done, 8, "student", None).holds_level
    bare = [without_twin(campaign) for campaign in done]
    assert outcome(bare, 8, "percentile", None).false.interval[0] > 0.05
    assert outcome(bare, 8, "student", None).false.interval[0] < 0.05


def without_twin(campaign: Campaign) -> Campaign:
    """The outcome without an A/A pair."""
    entries = tuple(entry for entry in campaign.scenario.entries if entry.repeat_of is None)
    kept = tuple(run for run in campaign.plain if run.label != CONTROL)
    return Campaign(campaign.scenario.model_copy(update={"entries": entries}), kept, ())


def test_ten_percent_is_found_in_four_campaigns_of_five() -> None:
    """12 blocks where a pair differs by 7 % from noise alone; nothing untrue is said besides."""
    done = list(many(partial(weather, 0.07), scenario_of(12, 1, 3), 1.10, range(120), 1))
    found = outcome(done, 12, "student", 1.10)
    assert found.spread == pytest.approx(0.07, rel=0.1)
    assert found.holds_level
    assert found.has_power
    assert found.wrong is not None
    assert found.wrong.value <= 0.05


def test_too_much_noise_for_the_blocks_is_not_found_and_not_claimed() -> None:
    """The bound on what is found can be missed, and what is missing is no false verdict."""
    done = list(many(partial(weather, 0.30), scenario_of(8, 1, 4), 1.10, range(60), 1))
    found = outcome(done, 8, "student", 1.10)
    assert found.holds_level
    assert found.has_power is False


def test_a_stretched_run_has_stretched_percentiles() -> None:
    """Exactly, and nothing else of it changes."""
    scenario = scenario_of(8, 500, 1)
    run = run_queues(scenario, scenario.entries[1], 0, 1, 7)
    slower = stretched(run, 1.1)
    assert scenario.entries[1].label == STRETCHED
    assert np.percentile(slower.samples.latency, 99) == pytest.approx(
        1.1 * np.percentile(run.samples.latency, 99)
    )
    assert slower.samples.scheduled_at is run.samples.scheduled_at


def test_entries_share_arrivals_and_demand_and_nothing_else() -> None:
    """Common random numbers within a block; the choice of a queue is each entry's own."""
    scenario = scenario_of(8, 200, 1)
    one, other, again = (
        run_queues(scenario, scenario.entries[0], 0, order, 5).samples for order in (0, 1, 0)
    )
    assert np.array_equal(one.scheduled_at, other.scheduled_at)
    assert not np.array_equal(one.worker, other.worker)
    assert np.array_equal(one.ended_at, again.ended_at)


def test_the_recursion_is_a_first_come_queue() -> None:
    """By hand: the second waits for the first, the third finds the queue empty, another queue knows nothing of it."""
    due, demand = np.array([0.0, 1.0, 6.0, 6.0]), np.array([2.0, 3.0, 1.0, 1.0])
    taken = sojourn(due, demand, np.array([0, 0, 0, 1]))
    assert taken.tolist() == [2.0, 4.0, 1.0, 1.0]


def test_the_queues_obey_the_closed_form() -> None:
    """M/M/1 at 0.7: the mean time is 1 / (1 - 0.7) demands."""
    scenario = scenario_of(8, 400_000, 1)
    run = run_queues(scenario, scenario.entries[0], 0, 0, 3)
    assert run.samples.latency.mean() == pytest.approx(0.010 / 0.3, rel=0.03)


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [(0, 200, 0.0, 0.0188), (10, 200, 0.0274, 0.0896), (200, 200, 0.9812, 1.0)],
)
def test_the_interval_of_a_rate(hits: int, total: int, low: float, high: float) -> None:
    """Wilson's, also where nothing or everything was hit."""
    assert Rate(hits, total).interval == pytest.approx((low, high), abs=1e-4)


def test_processes_change_nothing() -> None:
    """Two at a time give what one gives."""
    scenario = scenario_of(8, 50, 1)
    one, two = (list(many(run_queues, scenario, 1.5, range(4), jobs)) for jobs in (1, 2))
    assert one == two


def test_a_scenario_is_only_shortened() -> None:
    """Its own load as long as so many requests take, its events moved along."""
    short = lasting(load_scenario("one-slow-worker"), 300)
    assert short.load.planned == 300
    assert lasting(load_scenario("regions"), 300).load.requests == 300


def test_the_simulator_can_stand_behind_it() -> None:
    """Two campaigns of a packaged scenario, any policy; an unnamed scenario cannot have a policy."""
    words = ["--campaigns", "2", "--scenario", "homogeneous", "--policy", "least-in-flight", "--jobs", "1"]
    size = ["--requests", "100", "--rivals", "1"]
    ran = CliRunner().invoke(cli, ["calibration", *words, *size], standalone_mode=False)
    assert ran.return_value == 0, ran.output
    assert "false verdicts 0.0 %" in ran.output


def test_the_command_prints_rates_and_holds_bounds(tmp_path: Path) -> None:
    """Two sizes and two methods are four rows; what 10 % cannot be found in makes --check fail."""
    runner, file = CliRunner(), tmp_path / "rates.json"
    size = ["--campaigns", "4", "--requests", "100", "--blocks", "8,9", "--jobs", "1", "--planted", "1.1"]
    ran = runner.invoke(
        cli,
        ["calibration", *size, "--methods", "student,sign-flip", "--json", str(file)],
        standalone_mode=False,
    )
    assert ran.return_value == 0, ran.output
    assert "MISSED: student, 9 blocks of 100 requests: found" in ran.output
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert [(row["method"], row["blocks"]) for row in rows] == [
        ("student", 8), ("sign-flip", 8), ("student", 9), ("sign-flip", 9),
    ]  # fmt: skip
    assert runner.invoke(cli, ["calibration", *size, "--check"], standalone_mode=False).return_value == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "gut"], "unknown 'gut'; known: student"),
        (["--blocks", "7"], "at least 8"),
        (["--policy", "x"], "name a --scenario"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str) -> None:
    """It names the option and what is allowed."""
    ran = CliRunner().invoke(cli, ["calibration", *words], standalone_mode=False)
    assert isinstance(ran.exception, BadInputError)
    assert message in str(ran.exception)
