"""`experiments sweep` and the commands that read its catalogue: options, exit codes, errors of one line.

Also its local processes: how they start, and that only a cell that ends its process fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from multiprocessing import active_children
from pathlib import Path
from signal import SIGINT

import pytest
from click.testing import CliRunner
from rich.console import Console

from experiments.__main__ import cli
from experiments.run_data import Run
from experiments.scenario.scenario import Entry, Scenario
from experiments.sweep.catalogue import to_write
from experiments.sweep.cells import Cell, cells_of
from experiments.sweep.computation import DIED, Computation, local_processes
from experiments.sweep.driver import Progress, SweepOptions, run_sweep
from experiments.sweep.grid import Grid
from experiments.sweep.outcome import CellOutcome, compute, version_of
from tests.simulated.fake_simulator import simulate
from tests.simulated.sweeping import small_grid, swept
from tests.support.root import ROOT

DRIVER = (sys.executable, "-W", "error", "-m", "tests.simulated.sweeping")
GRID = 'name = "small"\nscenarios = ["steady"]\npolicies = ["random", "round-robin"]\nseeds = 8\nours = "random"\n'


def small() -> Grid:
    return small_grid(8, ours="random")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("sweep") / "small.sqlite", small())


def read(*arguments: str | Path) -> tuple[int, str]:
    """A command that only reads, in this process: exit code and output."""
    ran = CliRunner().invoke(cli, [str(argument) for argument in arguments], standalone_mode=False)
    assert ran.exception is None
    return ran.return_value or 0, ran.output.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["show"], "small"), (["show"], "round-robin"), (["show", "--measure", "p50"], "1.00 [1.00–1.00]")],
)
def test_catalogue_is_listed_and_shown(catalogue: Path, words: list[str], expected: str) -> None:
    code, output = read(*words, catalogue)
    assert code == 0
    assert expected in output


def test_catalogues_are_compared_and_checked(catalogue: Path) -> None:
    assert read("compare", catalogue, catalogue, "--exact") == (0, "equal\n")
    code, output = read("compare", catalogue, catalogue, "--measure", "p50")
    assert (code, "practically equal" in output) == (0, True)
    file = catalogue.parent / "c.json"
    assert read("compare", catalogue, catalogue, "--fail-if-worse", "1.01", "--json", file)[0] == 0
    assert json.loads(file.read_text(encoding="utf-8"))["changes"]


def test_catalogues_with_too_few_seeds_do_not_pass_the_check(tmp_path: Path) -> None:
    few = swept(tmp_path / "few.sqlite", small_grid(3, ours="random"))
    assert read("compare", few, few)[0] == 0
    code, output = read("compare", few, few, "--fail-if-worse", "1.01")
    assert (code, "not judged, too few seeds" in output) == (1, True)


def test_report_of_a_catalogue(catalogue: Path) -> None:
    code, output = read("report", catalogue)
    assert (code, "random is best or practically equal in 1 of 1" in output) == (0, True)
    assert (catalogue.parent / "small-report" / "matrix.html").is_file()


@pytest.mark.parametrize(
    ("has_dask", "scheduler", "code", "messages"),
    [
        (False, "tcp://127.0.0.1:1", 2, ("--scheduler needs Dask", "'.[sweep]' in the checkout")),
        (True, "nonsense://127.0.0.1:1", 3, ("--scheduler: no answer from nonsense://127.0.0.1:1: ",)),
    ],
)
def test_missing_dask_or_scheduler_is_one_line(
    tmp_path: Path, has_dask: bool, scheduler: str, code: int, messages: tuple[str, ...]
) -> None:
    """A module of that name that cannot be imported takes the place of an installation without the extra.

    In a process of its own, as every cluster of these tests."""
    if not has_dask:
        (tmp_path / "distributed.py").write_text("raise ImportError", encoding="utf-8")
    (tmp_path / "g.toml").write_text(GRID, encoding="utf-8")
    ran = subprocess.run(
        [*DRIVER, tmp_path / "g.toml", tmp_path / "a.sqlite", scheduler],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert (ran.returncode, ran.stderr.count("\n")) == (code, 1), ran.stderr
    assert all(message in ran.stderr for message in messages)
    assert (tmp_path / "a.sqlite").exists() is has_dask


def test_complete_catalogue_needs_no_scheduler(catalogue: Path) -> None:
    """The address has no listener."""
    options = SweepOptions(command="test", out=catalogue, scheduler="tcp://127.0.0.1:1")
    console = Console(record=True, width=200)
    assert run_sweep(small(), options, simulate, console) == 0
    assert "16 cells, 16 of them known already" in console.export_text()


def test_invalid_cells_are_said_where_they_are_not_compared(tmp_path: Path) -> None:
    grid = small_grid(8, ours="random", policies=["random", "round-robin"])
    path, said = swept(tmp_path / "a.sqlite", grid), "8 of 16 cells are invalid by what their runs say"
    with to_write(path) as opened:
        reasons = json.dumps(["the policy failed"])
        opened.connection.execute(
            "UPDATE results SET invalid = ? WHERE cell IN (SELECT id FROM cells WHERE label = 'random')",
            [reasons],
        )
    console = Console(record=True, width=200)
    assert run_sweep(grid, SweepOptions(command="test", out=path), simulate, console) == 0
    assert f"{said}, and are compared with nothing. `experiments show" in console.export_text()
    assert read("compare", path, path)[1].count(said) == 2
    shown = read("show", path)[1]
    assert "8/8, 8 INVALID" in shown
    assert re.search(r"invalid +the policy failed +8 +steady, random, seed 1", shown)


# --- processes


FATAL = 2
"""Seed whose cell ends its process."""


def fatal(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    if seed == FATAL:
        os._exit(9)
    return simulate(scenario, entry, block, order, seed)


@pytest.mark.second_tier
@pytest.mark.timeout(120)
def test_only_the_cell_that_ends_its_process_fails() -> None:
    """Those that were in flight with it are computed again, one at a time."""
    cells = cells_of(small_grid(6, policies=["random"]), version_of(fatal))
    ended = list[tuple[Cell, CellOutcome]]()
    computation = Computation(cells, fatal, False, lambda cell, outcome: ended.append((cell, outcome)))
    computation.run(lambda: local_processes(2))
    messages = {cell.seed: outcome.message for cell, outcome in ended}
    assert messages == {seed: DIED if seed == FATAL else None for seed in range(1, 7)}
    assert len(ended) == len(cells)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the state of signals is Linux's")
def test_all_processes_are_started_and_ignore_ctrl_c() -> None:
    """A terminal sends it to them, too; the driver alone handles it."""
    before = {process.pid for process in active_children()}
    with local_processes(3) as computers:
        started = [process.pid for process in active_children() if process.pid not in before]
        ignored = [
            int(line.split()[1], 16)
            for pid in started
            for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
            if line.startswith("SigIgn:")
        ]
        assert computers.count() == 3
    assert [mask >> (SIGINT - 1) & 1 for mask in ignored] == [1, 1, 1]


def test_progress_counts_and_estimates_by_requests() -> None:
    cells = cells_of(small(), "1")
    progress = Progress(20, cells, Console(quiet=True))
    assert progress.line().startswith("cell 4 of 20   0.0 cells/s   0 failed   0 workers")
    assert progress.line().endswith("left –")
    outcome = compute(cells[0], simulate, keep_samples=False)  # computed by other code, so it fails
    progress.threads = lambda: 1
    progress.cell_ended(cells[0], outcome)
    assert "cell 5 of 20" in progress.line()
    assert "1 failed   1 worker " in progress.line()
    assert not progress.line().endswith("–")
