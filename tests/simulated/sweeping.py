"""A driver that sweeps with the fake simulator: `python -m tests.simulated.sweeping GRID CATALOGUE [keep]`."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from experiments.errors import ExperimentError
from experiments.sweep.driver import SweepOptions, run_sweep
from experiments.sweep.grid import load_grid
from tests.simulated.fake_simulator import simulate


def main(grid: str, out: str, *words: str) -> int:
    """Run a sweep as the command does."""
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
