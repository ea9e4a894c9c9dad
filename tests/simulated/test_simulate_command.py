"""`experiments run --simulated` and `python -m benchmarks simulator` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulator.cases import SpeedCase, certify
from benchmarks.simulator.speed import Simulator, measure_speed, verdict
from experiments.__main__ import cli
from experiments.commands.run import quick_note
from experiments.platform.session import Session
from experiments.results.directory import load_results
from experiments.scenario.files import load_scenario
from experiments.scenario.overrides import Overrides, overridden
from experiments.simulator.run import simulate
from tests.support.command_line import run_in_process


@pytest.mark.usefixtures("unrendered")
def test_simulated_campaign_has_the_files_of_a_measured_one(tmp_path: Path) -> None:
    """A results directory with a report, all marked as simulated."""
    out = tmp_path / "results"
    options = ("--quick", "--policies", "random,oracle-least-work", "--out", str(out))
    done = run_in_process(cli, "experiments", "run", "--simulated", "homogeneous", *options)
    assert done.returncode == 0
    assert "Simulated" in done.stdout
    assert "No verdict" in done.stdout
    results = load_results(out)
    assert results.campaign.world == "simulated"
    assert {run.facts.world for run in results.runs} == {"simulated"}
    assert {run.facts.label for run in results.runs} == {"random", "oracle-least-work"}
    for name in ("report.html", "report.md"):
        assert "simulated" in (out / name).read_text().lower()
    assert json.loads((out / "summary.json").read_text())["world"] == "simulated"


@pytest.mark.parametrize(
    ("options", "is_noted"),
    [
        ({"quick": True}, True),
        ({"quick": True, "policies": ("round-robin",)}, True),
        ({"quick": True, "policies": ("random",)}, False),
        ({}, False),
    ],
)
def test_quick_names_the_a_a_pair_that_it_leaves_out(options: dict[str, Any], is_noted: bool) -> None:
    """Only where its entry takes part."""
    loaded, given = load_scenario("regions"), Overrides(**options)
    note = quick_note(loaded, overridden(loaded, given), given)
    assert ("A/A pair" in note) is is_noted


ODD = """
name = "odd"
question = "Why?"
baseline = "o"
home_region = "here"
regions = [{ name = "here", rtt = 0.01 }]
entries = [{ label = "o", policy = { name = "oracle-least-work", power = 2 } }]
"""


def test_unknown_option_of_an_oracle_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(ODD, encoding="utf-8")
    out = str(tmp_path / "results")
    done = run_in_process(cli, "experiments", "run", str(file), "--simulated", "--out", out)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "unexpected keyword argument 'power'" in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_a_control_differs_in_the_policys_random_choices() -> None:
    """The same arrivals and demand under one seed: the noise floor of a simulated campaign."""
    scenario = load_scenario("homogeneous").quickened()
    entry = next(entry for entry in scenario.entries if entry.policy.name == "least-in-flight")
    control = entry.model_copy(update={"label": "again"})
    one, same, other = (simulate(scenario, e, 0, 0, 7).samples for e in (entry, entry, control))
    assert (one.ended_at == same.ended_at).all()
    assert (one.scheduled_at == other.scheduled_at).all()
    assert (one.ended_at != other.ended_at).any()


def test_certificate_fails_if_a_figure_is_out_of_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    good = SpeedCase("good", 2.0, 0.01, 10, lambda samples, seed: 2.01)
    off = SpeedCase("off", 2.0, 0.01, 10, lambda samples, seed: 2.1)
    for chosen, code, text in (([good], 0, "1 of 1 within"), ([good, off], 1, "1 of 2 within")):
        assert certify(Session(is_checked=True), 1.0, chosen) == code
        assert text in capsys.readouterr().out


def test_speeds_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "speed.json"
    assert measure_speed(Session(file), 500, 1) == 0
    assert "SimPy" in capsys.readouterr().out
    assert all(speed > 0 for speeds in json.loads(file.read_text())["speeds"].values() for speed in speeds)


@pytest.mark.parametrize(
    ("speeds", "met"), [([120.0, 121.0], True), ([80.0, 81.0], False), ([80.0, 130.0], None)]
)
def test_speed_is_judged_by_its_interval(speeds: list[float], met: bool | None) -> None:
    """In the compiled build only."""
    simulator = Simulator("one", print, 100.0)
    assert [verdict(simulator, speeds, compiled).is_met for compiled in (True, False)] == [met, None]
