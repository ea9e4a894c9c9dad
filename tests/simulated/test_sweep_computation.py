"""Local processes of a sweep: how they start, and that a cell that ends its process fails, and no other cell does."""

from __future__ import annotations

import os
from multiprocessing import active_children
from pathlib import Path
from signal import SIGINT

import pytest

from experiments.run_data import Run
from experiments.scenario.scenario import Entry, Scenario
from experiments.sweep.cells import Cell, cells_of
from experiments.sweep.computation import DIED, Computation, local_processes
from experiments.sweep.grid import checked_grid
from experiments.sweep.outcome import CellOutcome, version_of
from tests.simulated import fake_simulator

FATAL = 2
"""Seed whose cell ends its process."""


def fatal(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    if seed == FATAL:
        os._exit(9)
    return fake_simulator.simulate(scenario, entry, block, order, seed)


@pytest.mark.second_tier
@pytest.mark.timeout(120)
def test_only_the_cell_that_ends_its_process_fails() -> None:
    """Those that were in flight with it are computed again, one at a time."""
    raw = {"name": "small", "scenarios": ["steady"], "policies": ["random"], "seeds": 6}
    cells = cells_of(checked_grid(raw, "grid"), version_of(fatal))
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
