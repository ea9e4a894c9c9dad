"""Processes killed in the middle of a sweep: no result is lost and none differs.

Real drivers and real local processes, ended by their process ids. Cells with late seeds wait at a pipe, so that "in
the middle" is a state and not an instant; tests wait for output and for ends of processes, never for a time.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from experiments.sweep import catalogue as catalogues
from experiments.sweep.catalogue import differences
from tests.simulated.fake_simulator import BROKEN, LATE, STAGE
from tests.support.root import ROOT

GRID = """
name = "small"
scenarios = ["steady"]
policies = ["random", "round-robin"]
seeds = 8
[knobs]
load.rate = [100, 150]
"""
CELLS, FREE = 32, 4 * (LATE - 1)
PATIENCE = 100.0
"""Seconds after which a process counts as hanging."""

pytestmark = [
    pytest.mark.second_tier,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux: watches processes by pidfd"),
]


class Stage:
    """A directory with a grid, and the pipes between cells and the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.grid, self.catalogue = directory / "grid.toml", directory / "a.sqlite"
        self.grid.write_text(GRID, encoding="utf-8")
        self.started: list[subprocess.Popen[str]] = []
        self._opened: list[int] = []
        os.mkfifo(directory / "started")
        self._started = os.open(directory / "started", os.O_RDWR)
        self._received = b""

    def hold(self) -> None:
        os.mkfifo(self.directory / "hold")

    def release(self) -> None:
        """Let waiting cells continue, and later ones not wait."""
        self._opened.append(os.open(self.directory / "hold", os.O_RDWR))
        (self.directory / "hold").unlink()

    def driver(self, is_staged: bool = True) -> subprocess.Popen[str]:
        """Start a sweep in a process group of its own."""
        staged = {STAGE: str(self.directory)} if is_staged else {}
        module = [sys.executable, "-W", "error", "-m", "tests.simulated.sweeping"]
        process = subprocess.Popen(
            [*module, str(self.grid), str(self.catalogue), "keep"],
            cwd=ROOT,
            env=os.environ | staged,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def swept(self) -> tuple[int, str]:
        """Run a sweep to its end: exit code and output."""
        return ended(self.driver())

    def late_cell(self) -> int:
        """Wait until a late cell waits; return the id of its process. Fails if the driver ends before."""
        while True:
            pid, _, seed = self._line().split()
            if int(seed) >= LATE:
                return int(pid)

    def _line(self) -> str:
        poll = select.poll()
        poll.register(self._started, select.POLLIN)
        while b"\n" not in self._received:
            if poll.poll(500):
                self._received += os.read(self._started, 4096)
            else:
                assert any(process.poll() is None for process in self.started), "the driver has ended"
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def results(self) -> int:
        with catalogues.to_read(self.catalogue) as catalogue:
            return sum(row.state != "missing" for row in catalogue.rows("small"))

    def differences(self, other: Path) -> list[str]:
        with catalogues.to_read(self.catalogue) as ours, catalogues.to_read(other) as theirs:
            return list(differences(ours, theirs, None))

    def must_complete(self, undisturbed: Path, driver: subprocess.Popen[str] | None = None) -> str:
        """The driver, or another one, ends with what an undisturbed sweep has; returns its output."""
        code, output = ended(driver or self.driver())
        assert code == 0, output
        assert self.differences(undisturbed) == []
        return output

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for number in self._opened:
            os.close(number)
        os.close(self._started)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def wait_for_end(pid: int) -> None:
    """Wait for the end of a process that is not a child of this one."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    end = select.poll()  # select() takes no descriptor above 1023
    end.register(handle, select.POLLIN)
    ready = end.poll(PATIENCE * 1e3)
    os.close(handle)
    assert ready, f"process {pid} is still there"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with closing(Stage(tmp_path)) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue of a sweep without a fault."""
    with closing(Stage(tmp_path_factory.mktemp("undisturbed"))) as stage:
        code, output = ended(stage.driver(is_staged=False))
        assert code == 0, output
        assert stage.results() == CELLS
    return stage.catalogue


def test_killed_worker_loses_no_result(stage: Stage, undisturbed: Path) -> None:
    stage.hold()
    driver = stage.driver()
    os.kill(stage.late_cell(), signal.SIGKILL)
    stage.release()
    stage.must_complete(undisturbed, driver)


def test_killed_driver_loses_no_result(stage: Stage, undisturbed: Path) -> None:
    stage.hold()
    driver = stage.driver()
    worker = stage.late_cell()
    driver.kill()
    driver.wait(PATIENCE)
    wait_for_end(worker)
    kept = stage.results()
    assert 0 < kept <= FREE
    assert stage.differences(undisturbed)
    stage.release()
    assert f"{CELLS} cells, {kept} of them known already" in stage.must_complete(undisturbed)


def test_ctrl_c_loses_no_result(stage: Stage, undisturbed: Path) -> None:
    """As from a terminal: to the driver and its workers."""
    stage.hold()
    driver = stage.driver()
    worker = stage.late_cell()
    os.killpg(driver.pid, signal.SIGINT)
    code, output = ended(driver)
    assert code == 130, output
    assert "the same command goes on" in output
    assert "Traceback" not in output
    wait_for_end(worker)
    stage.release()
    stage.must_complete(undisturbed)


def test_failed_cell_is_reported_and_computed_again(stage: Stage, undisturbed: Path) -> None:
    (stage.directory / "broken").touch()
    code, output = stage.swept()
    assert code == 1, output
    assert "16 cells failed; the same command tries them again" in output
    assert "RuntimeError: out of order" in output
    with catalogues.to_read(stage.catalogue) as catalogue:
        states = {(row.label, row.state, row.numbers["message"]) for row in catalogue.rows("small")}
    assert states == {("random", "done", None), (BROKEN, "failed", "RuntimeError: out of order")}
    (stage.directory / "broken").unlink()
    stage.must_complete(undisturbed)


def test_one_catalogue_has_one_driver(stage: Stage) -> None:
    stage.hold()
    driver = stage.driver()
    stage.late_cell()
    code, output = stage.swept()
    assert (code, output.count("\n")) == (2, 1)
    assert "another sweep is writing into it" in output
    stage.release()
    assert ended(driver)[0] == 0
