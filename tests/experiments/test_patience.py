"""Waiting for a quiet machine, and repeating disturbed runs, with simulated time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import cli as benchmarks
from experiments.__main__ import cli
from experiments.generator.ledger import Ledger
from experiments.platform import cpu_time
from experiments.results.directory import Campaign, PlannedRun, attempt_of, load_results
from experiments.run_data import Run, WorldName, load_run
from experiments.running import patience
from experiments.running.execute import execute
from experiments.running.patience import LOOK, QUIET_STEAL, Patience, has_lagged
from experiments.running.runner import Observer
from experiments.scenario.scenario import Scenario
from tests.support.result_sets import LATE, write_results
from tests.support.runs import as_planned, hand_made


class Host:
    """A machine of one processor, of which others take `shares` (0..1), one for each look, then nothing."""

    def __init__(self, *shares: float) -> None:
        self.now = 100.0
        self._shares = list(shares)
        self._stolen = 7.0

    def patience(self, seconds: float) -> Patience:
        return Patience(seconds, stolen=lambda: self._stolen, now=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self._stolen += seconds * (self._shares.pop(0) if self._shares else 0.0)


@pytest.fixture(autouse=True)
def one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_time, "cores", lambda: [0])


@pytest.mark.parametrize(
    ("shares", "seconds", "looks", "reported"),
    [
        ([QUIET_STEAL], 60.0, 1, []),
        ([0.5, 0.2, 0.03, 0.001], 60.0, 4, [0.5, 0.2, 0.03]),
        ([0.4] * 50, 10.0, 5, [0.4] * 5),
        ([0.4] * 50, 0.0, 0, []),
    ],
    ids=["quiet", "busy for a while", "busy for too long", "without patience"],
)
def test_it_waits_until_other_processes_are_idle(
    shares: list[float], seconds: float, looks: int, reported: list[float]
) -> None:
    """Each reading of a busy machine is reported. At the limit the run begins; without patience it begins at once."""
    host, heard = Host(*shares), list[float]()
    one = host.patience(seconds)
    one.begin(1)
    one.quiet(heard.append)
    assert host.now == 100.0 + looks * LOOK
    assert heard == pytest.approx(reported)


def test_only_runs_with_a_late_generator_are_repeated() -> None:
    """A run in which a worker died or that is valid is kept."""
    assert has_lagged(hand_made([0.1], invalid_reasons=("a worker died", LATE)))
    assert not has_lagged(hand_made([0.1], invalid_reasons=("a worker died",)))
    assert not has_lagged(hand_made([0.1]))


class Watcher(Observer):
    """An observer that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def machine_busy(self, planned: PlannedRun, taken: float) -> None:
        self.heard.append(f"{planned.label} waits, busy {taken:.0%}")

    def run_started(self, planned: PlannedRun) -> None:
        self.heard.append(f"{planned.label} started")

    def load_started(self, ledger: Ledger) -> None:
        self.heard.append("load")

    def run_ended(self, planned: PlannedRun, run: Run) -> None:
        self.heard.append("ended" if run.facts.is_valid else "invalid")


@pytest.mark.parametrize(("seconds", "tries"), [(0.0, 1), (1e6, 3), (4.0, 2)])
def test_a_disturbed_block_is_repeated_for_all_entries(tmp_path: Path, seconds: float, tries: int) -> None:
    """Its first run is twice disturbed, then valid: while there is patience both runs are repeated; all are kept."""
    write_results(tmp_path / "r", blocks=1, requests=50, stop_after=0)
    campaign = Campaign.model_validate_json((tmp_path / "r" / "campaign.json").read_text(encoding="utf-8"))
    campaign = campaign.model_copy(update={"plan": campaign.plan[:2]})
    first, second = (planned.label for planned in campaign.plan)
    host = Host(0.25)
    outcomes: Iterator[tuple[str, ...]] = iter([(LATE,), (LATE,), ()])

    class Disturbed:
        name: Final[WorldName] = "measured"

        def run(self, scenario: Scenario, planned: PlannedRun, observer: Observer) -> Run:
            reasons = next(outcomes) if planned.label == first else ()
            return as_planned(hand_made([0.1], invalid_reasons=reasons), planned)

    watcher = Watcher()
    execute(campaign, tmp_path / "r", Disturbed(), watcher, host.patience(seconds))

    waits = [f"{first} waits, busy 25%"] if seconds else []
    ends = ["invalid", "invalid", "ended"][:tries]
    expected = list(waits)
    for end in ends:
        expected += [f"{first} started", end, f"{second} started", "ended"]
    assert watcher.heard == expected
    results = load_results(tmp_path / "r")
    kept = {run.facts.label: run for run in results.runs}
    assert kept[first].facts.is_valid == (ends[-1] == "ended")
    assert [attempt_of(file) for file in results.set_aside] == [*range(1, tries), *range(1, tries)]
    aside = [load_run(file).facts for file in results.set_aside]
    assert [facts.is_valid for facts in aside] == [facts.label == second for facts in aside]


def test_no_wait_without_cpu_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(cores: object) -> float:
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr(cpu_time, "stolen_seconds", missing)
    assert patience.stolen_seconds() == 0.0


@pytest.mark.parametrize(("group", "command"), [(cli, "run"), (benchmarks, "fidelity")])
def test_patience_is_a_duration(group: click.Group, command: str) -> None:
    done = CliRunner().invoke(group, [command, "--patience", "soon"])
    assert "--patience: must be a duration" in str(done.exception or done.output)
