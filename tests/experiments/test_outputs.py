"""What other tools read: JUnit, annotations of GitHub Actions, and the notebook that reads a result set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments.__main__ import cli
from experiments.inference.run import SimulatedRunner
from experiments.platform.checks import Check, junit_xml, report_checks
from experiments.results.directory import RUNS, PlannedRun
from experiments.run_data import Run
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import simulate
from tests.support.command_line import run_in_process
from tests.support.programs import needs_full_device
from tests.support.root import ROOT

SCENARIO = """
name = "two"
question = "Which?"
baseline = "random"
home_region = "near"
thresholds = ["p99 < 10 s", "errors < 0.1 %"]
[load]
mode = "open"
rate = 50.0
duration = 2.0
[[regions]]
name = "near"
workers = 2
rtt = 0.02
[[entries]]
label = "random"
policy = "random"
[[entries]]
label = "turns"
policy = "round-robin"
thresholds = ["mean < 1 ms"]
"""


def cases_in(file: Path) -> dict[tuple[str, str], str]:
    """Outcome of each case, by class and name."""
    suite = ElementTree.parse(file).getroot()[0]
    cases = list(suite)
    assert int(suite.attrib["tests"]) == len(cases)
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
    assert int(suite.attrib["skipped"]) == len(suite.findall("testcase/skipped"))
    return {
        (case.attrib["classname"], case.attrib["name"]): case[0].tag if len(case) else "passed"
        for case in cases
    }


@pytest.mark.usefixtures("unrendered")
def test_run_states_each_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (tmp_path / "two.toml").write_text(SCENARIO.replace("duration = 2.0", "duration = 20.0"))
    files = ("--junit", str(tmp_path / "out" / "a.xml"), "--out", str(tmp_path / "out"))
    given = (str(tmp_path / "two.toml"), "--simulated", "--blocks", "1", *files)
    done = run_in_process(cli, "experiments", "run", *given)
    assert done.returncode == 1, done.stderr
    assert cases_in(tmp_path / "out" / "a.xml") == {
        ("random", "p99 < 10 s"): "passed",
        ("random", "errors < 0.1 %"): "passed",
        ("turns", "p99 < 10 s"): "passed",
        ("turns", "errors < 0.1 %"): "passed",
        ("turns", "mean < 1 ms"): "failure",
    }
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("::"))
    assert line.startswith("::error title=turns%3A mean < 1 ms::mean is ")


@pytest.mark.usefixtures("unrendered")
def test_a_threshold_that_cannot_be_judged_does_not_pass(tmp_path: Path) -> None:
    """With 999 requests a p99 is not shown; the exit code is 1 though nothing failed."""
    few = SCENARIO.replace("duration = 2.0", "duration = 19.98").replace('thresholds = ["mean < 1 ms"]', "")
    (tmp_path / "few.toml").write_text(few)
    files = ("--junit", str(tmp_path / "out" / "a.xml"), "--out", str(tmp_path / "out"))
    given = (str(tmp_path / "few.toml"), "--simulated", "--blocks", "1", *files)
    done = run_in_process(cli, "experiments", "run", *given)
    assert done.returncode == 1, done.stderr
    outcomes = cases_in(tmp_path / "out" / "a.xml")
    assert {outcomes[label, "p99 < 10 s"] for label in ("random", "turns")} == {"skipped"}
    assert {outcomes[label, "errors < 0.1 %"] for label in ("random", "turns")} == {"passed"}
    said = "THRESHOLD NOT JUDGED  random: p99 < 10 s (999 requests, a p99 takes 1\u202f000)"
    assert said in done.stdout.splitlines()
    assert "THRESHOLD FAILED" not in done.stdout


@pytest.mark.parametrize("name", ["campaign.json", "runs", "report.html", "summary.csv"])
def test_thresholds_are_no_file_of_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is checked before anything is measured, however the directory is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.toml").write_text(SCENARIO)
    for out, directory in (("out", "out"), (tmp_path / "out", "out"), ("out", tmp_path / "a" / ".." / "out")):
        files = ("--out", str(out), "--junit", str(Path(directory) / name))
        done = run_in_process(cli, "experiments", "run", "two.toml", "--simulated", *files)
        assert done.returncode == 2
        assert "--junit: in --out it must end in .xml" in done.stderr
        assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("unrendered")
def test_outputs_are_in_a_directory_that_is_written_differently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.toml").write_text(SCENARIO)
    given = ("two.toml", "--simulated", "--blocks", "1", "--out", str(tmp_path / "out"))
    done = run_in_process(cli, "experiments", "run", *given, "--junit", "out/a.xml")
    assert done.returncode == 1, done.stderr
    assert cases_in(tmp_path / "out" / "a.xml")
    revisions = ("compare", "--rev", "no-such", "no-such", "--json", "new/a.json", "--out", "new")
    assert "--json" not in run_in_process(cli, "experiments", *revisions).stderr


@needs_full_device
@pytest.mark.usefixtures("unrendered")
def test_full_disk_during_a_run_is_one_line_after_a_report_of_the_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: object, scenario: Scenario, planned: PlannedRun, observer: object) -> Run:
        if planned.order:
            (tmp_path / "out" / RUNS / f"{planned.file_name}.partial").symlink_to("/dev/full")
        return simulate(scenario, scenario.entry(planned.label), planned.block, planned.order, planned.seed)

    monkeypatch.setattr(SimulatedRunner, "run", run)
    (tmp_path / "two.toml").write_text(SCENARIO)
    given = (str(tmp_path / "two.toml"), "--simulated", "--blocks", "1", "--out", str(tmp_path / "out"))
    done = run_in_process(cli, "experiments", "run", *given)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "block-000-run-01.npz cannot be written: No space left on device" in done.stderr
    assert "Report: " in done.stdout


def test_label_in_letters_that_the_font_lacks_is_drawn_without_a_warning(tmp_path: Path) -> None:
    """Which would be an error here."""
    (tmp_path / "two.toml").write_text(
        SCENARIO.replace('label = "turns"', 'label = "順番"'), encoding="utf-8"
    )
    given = (str(tmp_path / "two.toml"), "--simulated", "--blocks", "2", "--out", str(tmp_path / "out"))
    done = run_in_process(cli, "experiments", "run", *given)
    assert "Report: " in done.stdout, done
    assert "順番" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@needs_full_device
def test_output_onto_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "experiments", "show"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    complaint = "experiments: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, complaint)


def test_what_is_not_judged_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("a <&>", "p99 < 1 s", None, "no run"), Check("ü", "p99 < 1 s", True, "met")]
    (tmp_path / "a.xml").write_bytes(junit_xml("suite", checks))
    assert list(cases_in(tmp_path / "a.xml").values()) == ["skipped", "passed"]
    report_checks("suite", [Check("a", "b", False, "c")], None)
    assert capsys.readouterr().out == ""  # not under GitHub Actions


# --- the notebook

NOTEBOOK = ROOT / "examples" / "results.ipynb"


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.peer
@pytest.mark.usefixtures("unrendered")
def test_notebook_reads_a_result_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.toml").write_text(SCENARIO)
    given = ("--simulated", "--blocks", "2", "--out", "results/my")
    run_in_process(cli, "experiments", "run", "two.toml", *given)
    names = names_after_notebook()
    assert len(names["requests"]) == 400
    assert sorted(names["quantiles"].index) == ["random", "turns"]
    assert (names["quantiles"][0.5] < names["quantiles"][0.99]).all()
    assert list(names["ratios"].loc["mean"].index) == ["turns"]
    assert names["over_time"].shape[1] == 2


@pytest.mark.peer
@pytest.mark.usefixtures("unrendered")
def test_quick_failures_are_no_fast_answers_in_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    monkeypatch.chdir(tmp_path)
    given = ("--simulated", "--quick", "--policies", "round-robin,steelyard", "--out", "results/my")
    run_in_process(cli, "experiments", "run", "fast-failures", *given)
    assert names_after_notebook()["ratios"].loc[("mean", "steelyard"), "ratio"] < 0.5


def names_after_notebook() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for cell in code_cells():
        exec(compile(cell, NOTEBOOK.name, "exec"), names)
    return names


def test_notebook_names_what_the_package_has(tmp_path: Path) -> None:
    """Also where pandas is absent: the imports of ours, and the columns of samples."""
    text = "\n".join(code_cells())
    for line in text.splitlines():
        if line.startswith("from experiments"):
            exec(line, {})
    compile(text, NOTEBOOK.name, "exec")
