"""Capacity search: result, precision, unusable runs, and the conditions of a trial."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibration.queue import run_queues, scenario_of
from experiments.__main__ import cli
from experiments.capacity.criteria import PRECISION, RateTrial, queue_growth, search, tried
from experiments.capacity.offered import at_rate, pooled
from experiments.errors import STOPPED, BadInputError
from experiments.inference.run import SimulatedRunner
from experiments.results.directory import PlannedRun
from experiments.run_data import Kind, Run
from experiments.scenario.events import Event
from experiments.scenario.scenario import Scenario
from tests.support.command_line import run_in_process


class System:
    """Bears `limit` requests per second; above `sight` the generator cannot follow."""

    def __init__(self, limit: float, sight: float = math.inf) -> None:
        self._limit, self._sight = limit, sight
        self.rates: list[float] = []

    def __call__(self, rate: float) -> RateTrial:
        self.rates.append(rate)
        missed = () if rate <= self._limit else ("p99",)
        return RateTrial(rate, rate, 0.0, 0.1, missed, "late" if rate > self._sight else "")


@pytest.mark.parametrize("limit", [3.0, 99.0, 100.0, 101.0, 749.5, 20_000.0])
def test_a_capacity_is_found_to_two_percent(limit: float) -> None:
    """From below and from above, in few trials, and the true limit lies between pass and failure."""
    system = System(limit)
    found = search(system, 100.0, least=1.0)
    assert found.is_found
    assert found.passed <= limit < found.failed <= found.passed * PRECISION * 1.000001
    assert len(found.trials) == len(system.rates) <= 25


def test_the_rate_rises_by_half_until_a_failure() -> None:
    """Then the geometric mean of both ends is tried."""
    system = System(160.0)
    search(system, 100.0, least=1.0)
    assert system.rates[:4] == pytest.approx([100.0, 150.0, 225.0, math.sqrt(150.0 * 225.0)])


def test_the_search_ends_when_no_rate_passes() -> None:
    """No rate below the least is tried."""
    found = search(System(0.0), 100.0, least=10.0)
    assert found.passed == 0.0
    assert not found.is_found
    assert 10.0 <= found.failed < 15.0


def test_unusable_trials_are_repeated_and_then_end_the_search() -> None:
    """The highest rate that passed is kept, and no limit of the system is reported."""
    system = System(1000.0, sight=200.0)
    found = search(system, 100.0, least=1.0)
    assert system.rates == pytest.approx([100.0, 150.0, 225.0, 225.0, 225.0])
    assert (found.passed, found.failed, found.is_found) == (150.0, math.inf, False)
    assert found.unusable == "at 225/s late"


def queue_run(load: float, count: int = 20_000, seed: int = 1) -> tuple[Run, float]:
    """Six queues at this part of what they can do."""
    scenario = scenario_of(8, count, 1)
    scenario = at_rate(scenario, load * pooled(scenario), count / (load * pooled(scenario)))
    return run_queues(scenario, scenario.entries[0], 0, 0, seed), scenario.load.rate


@pytest.mark.parametrize("seed", range(6))
def test_growth_is_found_under_overload_only(seed: int) -> None:
    """At 85 % load queues are long and fluctuate; at 110 % they grow."""
    busy, over = (tried(*queue_run(load, seed=seed), slo=1e9) for load in (0.85, 1.10))
    assert busy.passed
    assert "requests in flight grow" in over.missed[0]


def test_few_requests_that_come_and_go_are_no_growth() -> None:
    """One that is in flight while the fit is made would be a rising line."""
    run, _ = queue_run(0.5, count=20)
    part = run.samples.rows(np.arange(len(run.samples)) < 1)
    one = replace(part, scheduled_at=np.array([18.0]), ended_at=np.array([18.2]))
    assert not list(queue_growth(one))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--policy", "random", "--duration", "0.01"),
            "--start, --duration: 1 requests in a run; a p99 takes",
        ),
        (("--policy", "random", "--start", "33"), "--start, --duration: 990 requests in a run; a p99 takes"),
        (("--policy", "random", "--start", "1e7"), "1e+07/s: 300,000,000 requests; a run has at most 20,000"),
        (("--curve", "--rates", "1e7"), "1e+07/s: 300,000,000 requests; a run has at most 20,000,000"),
    ],
)
def test_runs_of_too_few_or_too_many_requests_are_rejected(options: tuple[str, ...], message: str) -> None:
    done = run_in_process(cli, "experiments", "capacity", "steady", "--simulated", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"experiments: {message}")


@pytest.mark.usefixtures("unrendered")
def test_stopped_search_reports_the_rates_that_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The third run is stopped."""
    simulated, begun = SimulatedRunner.run, list[PlannedRun]()

    def run(runner: SimulatedRunner, scenario: Scenario, planned: PlannedRun, observer: object) -> Run:
        begun.append(planned)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return simulated(runner, scenario, planned, observer)

    monkeypatch.setattr(SimulatedRunner, "run", run)
    search = ("--policy", "random", "--simulated", "--duration", "50", "--start", "20")
    done = run_in_process(cli, "experiments", "capacity", "steady", *search, "--json", str(tmp_path / "a"))
    assert done.returncode == STOPPED
    assert "No capacity: 30/s passed, and the search was stopped" in done.stdout
    assert [one["passed"] for one in json.loads((tmp_path / "a").read_text())] == [30.0]


def test_missed_conditions_name_the_value() -> None:
    """Too slow, failing, or not sent."""
    run, rate = queue_run(0.5)
    kinds = np.where(np.arange(len(run.samples)) % 50 == 0, int(Kind.RESET), int(Kind.OK))
    failing = Run(run.facts, replace(run.samples, kind=kinds))
    assert tried(run, rate, slo=0.001).missed[0].startswith("p99 ")
    assert any(words.startswith("2.00 % errors") for words in tried(failing, rate, slo=1e9).missed)
    assert tried(run, rate * 1.1, slo=1e9).missed[0].startswith("90.9 %")


def test_a_run_in_which_lag_may_decide_is_unusable() -> None:
    """The p99 is beyond the limit and may be within it without the lag; otherwise the lag does not matter."""
    run, rate = queue_run(0.5, count=500)
    samples = run.samples
    late = Run(run.facts, replace(samples, sent_at=samples.scheduled_at + 0.1 * samples.latency))
    p99 = tried(run, rate, slo=1e9).p99
    assert tried(late, rate, slo=1.01 * p99).passed
    assert tried(late, rate, slo=0.9 * p99).unusable.endswith(
        f"without the generator's lag, {900 * p99:g} ms allowed"
    )
    assert tried(late, rate, slo=0.7 * p99).missed
    assert not tried(late, rate, slo=0.7 * p99).unusable


def test_capacity_of_all_workers() -> None:
    """Six queues of one slot, 10 ms each, one of them twice as fast."""
    scenario = scenario_of(8, 100, 1)
    fast = scenario.regions[0].model_copy(update={"speed": (2.0, 1.0, 1.0, 1.0, 1.0, 1.0)})
    assert pooled(scenario) == pytest.approx(600.0)
    assert pooled(scenario.model_copy(update={"regions": (fast,)})) == pytest.approx(700.0)


def test_scenarios_with_bursts_or_events_are_rejected() -> None:
    """A closed loop becomes an open one."""
    scenario = scenario_of(8, 100, 1)
    burst = scenario.load.model_copy(update={"arrivals": "burst", "peak": 9.0, "lasts": 1.0})
    with pytest.raises(BadInputError, match="arrivals = 'burst'"):
        at_rate(scenario.model_copy(update={"load": burst}), 10.0)
    with pytest.raises(BadInputError, match="events change"):
        at_rate(scenario.model_copy(update={"events": (Event(at=0, kind="down"),)}), 10.0)
    closed = scenario.load.model_copy(update={"mode": "closed"})
    assert at_rate(scenario.model_copy(update={"load": closed}), 10.0).load.mode == "open"
