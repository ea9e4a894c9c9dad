"""Local processes of a sweep that die: a cell that ends its process fails, and no other cell does."""

from __future__ import annotations

import os

import pytest

from experiments.scenario.scenario import Entry, Scenario
from experiments.stats.samples import Run
from experiments.sweep.cells import Cell, cells_of
from experiments.sweep.code import version_of
from experiments.sweep.computation import DIED, Computation
from experiments.sweep.executor import local_processes
from experiments.sweep.grid import checked_grid
from experiments.sweep.outcome import Outcome
from tests.simulated import fake_simulator

FATAL = 2
"""Seed whose cell ends its process."""


def fatal(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    if seed == FATAL:
        os._exit(9)
    return fake_simulator.simulate(scenario, entry, block, order, seed)


@pytest.mark.timeout(120)
def test_only_the_cell_that_ends_its_process_fails() -> None:
    """Those that were in flight with it are computed again, one at a time."""
    raw = {"name": "small", "scenarios": ["steady"], "policies": ["random"], "seeds": 6}
    cells = cells_of(checked_grid(raw, "grid"), version_of(fatal))
    ended = list[tuple[Cell, Outcome]]()
    computation = Computation(cells, fatal, False, lambda cell, outcome: ended.append((cell, outcome)))
    computation.run(lambda: local_processes(2))
    messages = {cell.seed: outcome.message for cell, outcome in ended}
    assert messages == {seed: DIED if seed == FATAL else None for seed in range(1, 7)}
    assert len(ended) == len(cells)
