"""Driver of a sweep: determine the missing cells, have them computed, and store them in the catalogue.

Only the catalogue records what is done. A stopped or killed sweep is resumed by the same command, and its catalogue
equals that of an undisturbed one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from experiments.sweep import catalogue as catalogues
from experiments.sweep.catalogue import Catalogue
from experiments.sweep.cells import Cell, cells_of
from experiments.sweep.cluster import dask, joined
from experiments.sweep.code import version_of
from experiments.sweep.grid import Grid
from experiments.sweep.lock import only_driver
from experiments.sweep.outcome import Simulate
from experiments.sweep.progress import Progress
from experiments.terminal import STOPPED, interruptible, print_stopped

FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Options of one execution of a sweep; none of them changes a result."""

    command: str
    out: Path
    scheduler: str | None = None
    workers: int | None = None
    keep_samples: bool = False


def run_session(grid: Grid, sitting: Session, simulate: Simulate, console: Console) -> int:
    """Compute the missing cells; returns the exit code. Raises `ExperimentError`."""
    dask()
    code = version_of(simulate)
    cells = cells_of(grid, code)
    with only_driver(sitting.out), catalogues.to_write(sitting.out) as catalogue:
        missing = missing_of(cells, catalogue, sitting.keep_samples)
        catalogue.plan(grid, code, sitting.command, cells)
        console.print(greeting(len(cells), len(missing), sitting.out), highlight=False, soft_wrap=True)
        progress = Progress(len(cells), missing, console)
        try:
            asyncio.run(interruptible(carried_out(missing, catalogue, sitting, simulate, progress)))
        except (asyncio.CancelledError, KeyboardInterrupt):
            left = len(missing_of(cells, catalogue, sitting.keep_samples))
            print_stopped(console, f"{left} cells are missing; the same command goes on with them.")
            return STOPPED
    return farewell(progress, sitting.out, console)


def missing_of(cells: list[Cell], catalogue: Catalogue, keep_samples: bool) -> list[Cell]:
    """Cells without a result, including failed ones."""
    finished = catalogue.finished(keep_samples)
    return [cell for cell in cells if cell.identity not in finished]


async def carried_out(
    missing: list[Cell], catalogue: Catalogue, sitting: Session, simulate: Simulate, progress: Progress
) -> None:
    """Compute cells and store each in the catalogue before the next outcome is handled."""
    if not missing:
        return
    with progress:
        async with joined(sitting.scheduler, sitting.workers) as cluster:
            progress.threads = lambda: cluster.threads
            async for cell, outcome in cluster.outcomes(missing, simulate, sitting.keep_samples):
                catalogue.record(cell, outcome)
                progress.cell_ended(cell, outcome)


def greeting(planned: int, missing: int, out: Path) -> str:
    """Line with the number of cells to compute."""
    known = f", {planned - missing} of them known already" if missing < planned else ""
    return f"{planned} cells{known}, into {out}"


def farewell(progress: Progress, out: Path, console: Console) -> int:
    """Print a sentence and return exit code 1 when cells failed, else 0."""
    if not progress.failed:
        return 0
    console.print(
        Text(f"{progress.failed} cells failed", style="bold red"),
        f"; the same command tries them again, and `experiments catalogue show {out}` says why they did.",
        sep="",
        highlight=False,
        soft_wrap=True,
    )
    return FAILED
