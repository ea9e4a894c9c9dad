"""The command line as a program: exit codes, one-line messages, and one small experiment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.__main__ import cli
from experiments.results.directory import load_results
from experiments.scenario.files import packaged
from tests.experiments.offspring import children_of
from tests.support.command_line import complaint, run_in_process
from tests.support.result_sets import write_results

TINY = """
name = "tiny"
question = "Does the whole path work?"
measure = "throughput"
baseline = "round-robin"
home_region = "near"
time_scale = 0.2
warmup = 2
blocks = 1
timeout = 20.0
thresholds = ["errors < 1 %"]
[load]
mode = "closed"
batch = 6
requests = 60
[[regions]]
name = "near"
workers = 1
rtt = 0.05
[[regions]]
name = "far"
workers = 1
rtt = 0.20
[[entries]]
label = "round-robin"
policy = "round-robin"
"""

GRID = 'name = "small"\nscenarios = ["steady"]\npolicies = ["random", "round-robin"]\nseeds = 8\n'


def experiments(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=cwd, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nowhere"), "unknown scenario 'nowhere'; known: bursts, cold-start"),
        (("run", "--policies", "p2x"), "--policies: unknown 'p2x'; known: "),
        (("run", "--batch", "0"), "'--batch': 0 is not in the range x>=1"),
        (("run", "--batch", "5", "--rate", "3"), "--batch and --rate: choose"),
        (("run", "steady", "--rate", "nan"), "'--rate': nan is not a finite number"),
        (
            ("run", "regions", "--duration", "5"),
            "--duration: this scenario is a closed loop; an open one needs --rate",
        ),
        (("capacity", "steady", "--curve", "--rates", "nan,60"), "--rates: 'nan,60': positive rates"),
        (("report", "/nonexistent"), "/nonexistent: no results here"),
        (("capacity", "regions", "--curve", "--rates", "x"), "--rates: 'x': positive rates"),
        (("capacity", "steady", "--policy", "gut"), "'gut'"),
        (("capacity", "steady"), "--policy"),
        (("capacity", "steady", "--policy", "random", "--rates", "5"), "--rates: "),
        (("capacity", "steady", "--curve", "--policy", "random"), "--policy: "),
        (("run", "steady", "--simulated", "--junit", "/nonexistent/a.xml"), "--junit: /nonexistent is not"),
        (("run", "steady", "--simulated", "--otlp", "http://a"), "--otlp: only for measured runs"),
        (("compare", "a", "b", "--junit", "a.xml"), "--junit: needs --fail-if-worse"),
        (("rum",), "No such command 'rum'; did you mean 'run'?"),
        (("from-log", "a.log"), "No such command 'from-log'; commands: run, show, report, "),
        (
            ("run", "homogeneous", "--policies", "oracle-least-work"),
            "'oracle-least-work': only the simulator",
        ),
        (("run", "steady", "--simulated", "--patience", "4m"), "--patience: only for measured runs; "),
        (("sweep", "nowhere.toml"), "nowhere.toml: cannot be read: No such file or directory"),
        (
            ("sweep", "g.toml", "--workers", "2", "--scheduler", "tcp://127.0.0.1:1"),
            "--workers and --scheduler: ",
        ),
        (("show", "nowhere.sqlite"), "nowhere.sqlite: no such file; `experiments sweep` makes one"),
        (
            ("show", "nowhere"),
            "nowhere: no such scenario, policy, results directory or catalogue; scenarios: ",
        ),
        (
            ("show", "steelyar"),
            "steelyar: no such scenario, policy, results directory or catalogue; did you mean steelyard?",
        ),
        (("show", "regions", "--grid", "small"), "--grid: only for the catalogue of a sweep"),
        (("report", "g.toml", "--measure", "p98"), "Invalid value for '--measure'"),
        (("report", "nowhere", "--measure", "p50"), "--measure: only for the catalogue of a sweep"),
        (("compare", "g.toml", "g.toml", "--quick"), "--quick: only with --rev"),
        (("report", "g.toml"), "g.toml: holds no request, and line 1: is not a line of an access log"),
        (("sweep", "--policies", ","), "--policies: name at least one"),
        (("sweep", "--scenarios", "nowhere"), "unknown scenario 'nowhere'; known: "),
        (("sweep", "g.toml", "--seeds", "3"), "--seeds: only without GRID"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the option or the field; there is no traceback."""
    (tmp_path / "g.toml").write_text(GRID, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert message in complaint(cli, "experiments", *arguments)


def test_show_without_a_name_lists_every_scenario_with_its_question() -> None:
    """One line each, indented under a heading; the default and those that need the simulator are marked."""
    lines = run_in_process(cli, "experiments", "show").stdout.splitlines()
    shown = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert set(shown) == {*packaged(), "random-SEED"}
    assert all("?" in line for line in shown.values())
    assert [name for name, line in shown.items() if "(default)" in line] == ["regions"]
    assert "(simulated only)" in shown["stale-reports"]
    assert lines[0] == "control"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A real campaign of one run: two workers, a balancer, 60 requests."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.toml").write_text(TINY, encoding="utf-8")
    return folder / "out", experiments("run", "tiny.toml", "--out", "out", cwd=folder)


def test_a_measured_experiment(tiny: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Exit code 0, the table and the report's path on the terminal, every request answered."""
    directory, done = tiny
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Report: out/report.html" in done.stdout
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    assert {entry["label"]: entry["table"]["ok"] for entry in summary["entries"]} == {"round-robin": 60}


def test_requests_are_attributed_to_workers(tiny: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Round-robin halves the work, and the balancer's status agrees."""
    directory, _ = tiny
    (run,) = load_results(directory).runs
    assert [place.worker for place in run.facts.places] == ["near-0", "far-0"]
    assert sorted(run.samples.worker).count(0) == 30
    assert run.facts.status["policy"]["name"] == "round-robin"


@pytest.mark.usefixtures("unrendered")
def test_a_search_for_capacity_names_its_bound_in_measured_time(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    search = ("--policy", "random", "--simulated", "--duration", "5", "--start", "200")
    done = run_in_process(cli, "experiments", "capacity", str(tmp_path / "tiny.toml"), *search)
    assert done.stdout.startswith("random: p99 within 200 ms; "), done


@pytest.mark.usefixtures("unrendered")
def test_report_is_drawn_elsewhere(tmp_path: Path) -> None:
    """Nothing is written beside the runs, which may be on a read-only medium."""
    write_results(tmp_path / "r", blocks=1, requests=100)
    before = sorted((tmp_path / "r").rglob("*"))
    done = run_in_process(cli, "experiments", "report", str(tmp_path / "r"), "--out", str(tmp_path / "out"))
    assert f"Report: {tmp_path / 'out' / 'report.html'}" in done.stdout, done
    assert (tmp_path / "out" / "summary.json").exists()
    assert sorted((tmp_path / "r").rglob("*")) == before


def test_a_failed_threshold_is_exit_1(tmp_path: Path) -> None:
    """The campaign has 2 % of failures where 0.1 % is allowed."""
    write_results(tmp_path / "r", blocks=1, requests=100, failures=0.2, stop_after=1)
    done = run_in_process(cli, "experiments", "report", str(tmp_path / "r"))
    assert done.returncode == 1
    assert "THRESHOLD FAILED" in done.stdout
    assert "missed by" in done.stdout


@pytest.mark.second_tier
def test_ctrl_c_leaves_a_report_and_no_process(tmp_path: Path) -> None:
    """Stopped in its second run: exit code 130, and the first run is stored and reported."""
    text = TINY.replace("requests = 60", "requests = 4000").replace("blocks = 1", "blocks = 9")
    (tmp_path / "tiny.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "experiments", "run", "tiny.toml", "--out", "out", "--requests", "40"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        while not list((tmp_path / "out" / "runs").glob("*.npz")) and process.poll() is None:
            time.sleep(0.05)
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=40)
    assert process.returncode == 130
    assert "Stopped." in output
    assert (tmp_path / "out" / "report.html").exists()
    assert not [pid for pid in children if (Path("/proc") / pid).exists()]
