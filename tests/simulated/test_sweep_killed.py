"""It must show 7: whatever is killed in the middle of a sweep, nothing is lost and nothing comes out differently.

Real drivers and real local processes, ended by their process ids. Cells with late seeds wait at a pipe, so that "in the
middle" is a state and not an instant; tests wait for what processes say and end, never for a time.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.sweep import catalogue as catalogues
from experiments.sweep.equality import differences
from tests.simulated.standin import BROKEN, LATE, STAGE

ROOT = Path(__file__).resolve().parents[2]
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
"""Seconds after which a process is taken to hang."""

pytestmark = [
    pytest.mark.second_tier,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux: watches processes by pidfd"),
]


class Stage:
    """A directory with a grid, and the pipes by which cells talk with the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.grid = directory / "grid.toml"
        self.grid.write_text(GRID, encoding="utf-8")
        self.started: list[subprocess.Popen[str]] = []
        self._opened: list[int] = []
        os.mkfifo(directory / "told")
        self._told = os.open(directory / "told", os.O_RDWR)
        self._heard = b""

    def hold(self) -> None:
        """Late cells will wait."""
        os.mkfifo(self.directory / "hold")

    def release(self) -> None:
        """Whoever waits goes on, and nobody waits any more."""
        self._opened.append(os.open(self.directory / "hold", os.O_RDWR))
        (self.directory / "hold").unlink()

    def driver(self, out: str, *words: str, is_staged: bool = True) -> subprocess.Popen[str]:
        """A sweep that has begun, in a process group of its own."""
        staged = {STAGE: str(self.directory)} if is_staged else {}
        module = [sys.executable, "-W", "error", "-m", "tests.simulated.sweeping"]
        process = subprocess.Popen(
            [*module, str(self.grid), str(self.directory / out), "keep", *words],
            cwd=ROOT,
            env=os.environ | staged,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def swept(self, out: str, *words: str) -> tuple[int, str]:
        """A sweep from begin to end: exit code, and what it said."""
        return ended(self.driver(out, *words))

    def late_cell(self) -> int:
        """Wait until a cell waits; the process that computes it. A driver that has ended never gets there."""
        while True:
            pid, _, seed = self._line().split()
            if int(seed) >= LATE:
                return int(pid)

    def _line(self) -> str:
        ear = select.poll()
        ear.register(self._told, select.POLLIN)
        while b"\n" not in self._heard:
            if ear.poll(500):
                self._heard += os.read(self._told, 4096)
            else:
                assert any(process.poll() is None for process in self.started), "the driver has ended"
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def answers(self, out: str) -> int:
        """Results that are in the catalogue."""
        with catalogues.to_read(self.directory / out) as catalogue:
            return sum(row.state != "missing" for row in catalogue.rows("small"))

    def differences(self, out: str, other: Path) -> list[str]:
        """In words; none where the two hold the same."""
        with catalogues.to_read(self.directory / out) as ours, catalogues.to_read(other) as theirs:
            return list(differences(ours, theirs, None))

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for number in self._opened:
            os.close(number)
        os.close(self._told)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, said


def must_die(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
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
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue of a sweep that nobody touched."""
    stage = Stage(tmp_path_factory.mktemp("undisturbed"))
    try:
        code, said = ended(stage.driver("quiet.sqlite", is_staged=False))
        assert code == 0, said
        assert stage.answers("quiet.sqlite") == CELLS
    finally:
        stage.close()
    return stage.directory / "quiet.sqlite"


def test_a_killed_worker_loses_nothing(stage: Stage, undisturbed: Path) -> None:
    stage.hold()
    driver = stage.driver("other.sqlite")
    os.kill(stage.late_cell(), signal.SIGKILL)
    stage.release()
    code, said = ended(driver)
    assert code == 0, said
    assert stage.differences("other.sqlite", undisturbed) == []


def test_a_killed_driver_loses_nothing(stage: Stage, undisturbed: Path) -> None:
    stage.hold()
    driver = stage.driver("other.sqlite")
    worker = stage.late_cell()
    driver.kill()
    driver.wait(PATIENCE)
    must_die(worker)
    kept = stage.answers("other.sqlite")
    assert 0 < kept <= FREE
    assert stage.differences("other.sqlite", undisturbed)
    stage.release()
    code, said = stage.swept("other.sqlite")
    assert code == 0, said
    assert f"{CELLS} cells, {kept} of them known already" in said
    assert stage.differences("other.sqlite", undisturbed) == []


def test_ctrl_c_loses_nothing(stage: Stage, undisturbed: Path) -> None:
    """As a terminal sends it: to the driver and to its workers."""
    stage.hold()
    driver = stage.driver("other.sqlite")
    worker = stage.late_cell()
    os.killpg(driver.pid, signal.SIGINT)
    code, said = ended(driver)
    assert code == 130, said
    assert "the same command goes on" in said
    assert "Traceback" not in said
    must_die(worker)
    stage.release()
    code, said = stage.swept("other.sqlite")
    assert code == 0, said
    assert stage.differences("other.sqlite", undisturbed) == []


def test_a_cell_that_raises_is_told_and_tried_again(stage: Stage, undisturbed: Path) -> None:
    (stage.directory / "broken").touch()
    code, said = stage.swept("other.sqlite")
    assert code == 1, said
    assert "16 cells failed; the same command tries them again" in said
    assert "RuntimeError: out of order" in said
    with catalogues.to_read(stage.directory / "other.sqlite") as catalogue:
        states = {(row.label, row.state, row.numbers["message"]) for row in catalogue.rows("small")}
    assert states == {("random", "done", None), (BROKEN, "failed", "RuntimeError: out of order")}
    (stage.directory / "broken").unlink()
    code, said = stage.swept("other.sqlite")
    assert code == 0, said
    assert stage.differences("other.sqlite", undisturbed) == []


def test_one_catalogue_has_one_driver(stage: Stage) -> None:
    stage.hold()
    driver = stage.driver("other.sqlite")
    stage.late_cell()
    code, said = stage.swept("other.sqlite")
    assert (code, said.count("\n")) == (2, 1)
    assert "another sweep is writing into it" in said
    stage.release()
    assert ended(driver)[0] == 0
