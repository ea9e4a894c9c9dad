"""Sweeps with the fake simulator, in this process or by a driver of its own.

python -m tests.simulated.sweeping GRID CATALOGUE [keep]
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from experiments.errors import ExperimentError
from experiments.sweep.catalogue import to_write
from experiments.sweep.cells import cells_of
from experiments.sweep.driver import SweepOptions, run_sweep
from experiments.sweep.grid import Grid, checked_grid, load_grid
from experiments.sweep.outcome import compute, version_of
from tests.simulated.fake_simulator import simulate


def small_grid(seeds: int, **keys: object) -> Grid:
    """Two policies in one scenario."""
    raw = {"name": "small", "scenarios": ["steady"], "policies": ["random", "round-robin"], "seeds": seeds}
    return checked_grid(raw | keys, "grid")


def swept(path: Path, grid: Grid, keep: bool = False, faster: float = 1.0) -> Path:
    """A catalogue with every cell of the grid computed here."""
    code = version_of(simulate)
    cells = cells_of(grid, code)
    with to_write(path) as catalogue:
        catalogue.plan(grid, code, "test", cells)
        for cell in cells:
            outcome = compute(cell, simulate, keep)
            outcome.numbers["p99"] = float(str(outcome.numbers["p99"])) / faster
            catalogue.record(cell, outcome)
    return path


def main(grid: str, out: str, *words: str) -> int:
    keep, scheduler = "keep" in words, next((word for word in words if "://" in word), None)
    workers = None if scheduler else 2
    options = SweepOptions(
        command="test", out=Path(out), workers=workers, keep_samples=keep, scheduler=scheduler
    )
    try:
        return run_sweep(load_grid(Path(grid)), options, simulate, Console())
    except ExperimentError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
