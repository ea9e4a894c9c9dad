"""Driver of a sweep: determine the missing cells, have them computed, and store them in the catalogue.

Only the catalogue records what is done. A stopped or killed sweep is resumed by the same command, and its catalogue
equals that of an undisturbed one.

A second driver would compute the same cells again, so the first holds a lock, which the kernel releases when its
process ends. The empty lock file stays, because deleting it would be a race.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from experiments.errors import BadInputError
from experiments.platform.terminal import STOPPED, print_stopped, signals_interrupt
from experiments.simulator.run import Simulate
from experiments.sweep import catalogue as catalogues
from experiments.sweep.catalogue import Catalogue
from experiments.sweep.cells import Cell, cells_of
from experiments.sweep.code import version_of
from experiments.sweep.computation import Computation
from experiments.sweep.executor import Computers, dask, dask_cluster, local_processes
from experiments.sweep.grid import Grid
from experiments.sweep.outcome import CellOutcome
from experiments.sweep.progress import Progress


@contextmanager
def only_driver(catalogue: Path) -> Iterator[None]:
    """Hold the catalogue's lock. Raises `BadInputError` while another process sweeps into the catalogue."""
    path = catalogue.with_name(f"{catalogue.name}-driver")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise BadInputError(f"{catalogue}: cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInputError(f"{catalogue}: another sweep is writing into it") from None
        yield


FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of one execution of a sweep; none of them changes a result."""

    command: str
    out: Path
    scheduler: str | None = None
    workers: int | None = None
    keep_samples: bool = False


def run_sweep(grid: Grid, options: SweepOptions, simulate: Simulate, console: Console) -> int:
    """Compute the missing cells; returns the exit code. Raises `ExperimentError`."""
    if options.scheduler is not None:
        dask()
    code = version_of(simulate)
    cells = cells_of(grid, code)
    with only_driver(options.out), catalogues.to_write(options.out) as catalogue:
        missing = missing_of(cells, catalogue, options.keep_samples)
        catalogue.plan(grid, code, options.command, cells)
        console.print(greeting(len(cells), len(missing), options.out), highlight=False, soft_wrap=True)
        progress = Progress(len(cells), missing, console)
        try:
            with signals_interrupt(), progress:
                compute_missing(missing, catalogue, options, simulate, progress)
        except KeyboardInterrupt:
            left = len(missing_of(cells, catalogue, options.keep_samples))
            print_stopped(console, f"{left} cells are missing; the same command goes on with them.")
            return STOPPED
    return farewell(progress, options.out, console)


def missing_of(cells: list[Cell], catalogue: Catalogue, keep_samples: bool) -> list[Cell]:
    """Cells without a result, including failed ones."""
    finished = catalogue.finished(keep_samples)
    return [cell for cell in cells if cell.identity not in finished]


def compute_missing(
    missing: list[Cell], catalogue: Catalogue, options: SweepOptions, simulate: Simulate, progress: Progress
) -> None:
    """Compute cells and store each in the catalogue before the next outcome is handled."""

    def ended(cell: Cell, outcome: CellOutcome) -> None:
        catalogue.record(cell, outcome)
        progress.cell_ended(cell, outcome)

    @contextmanager
    def opened() -> Iterator[Computers]:
        with computers_of(options, len(missing)) as computers:
            progress.threads = computers.count
            yield computers

    Computation(missing, simulate, options.keep_samples, ended).run(opened)


def computers_of(options: SweepOptions, cells: int) -> AbstractContextManager[Computers]:
    """The chosen cluster, or as many local processes as chosen, as there are processors, at most as many as cells."""
    if options.scheduler is not None:
        return dask_cluster(options.scheduler)
    return local_processes(min(options.workers or os.cpu_count() or 1, cells))


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
        f"; the same command tries them again, and `experiments show {out}` shows the reasons.",
        sep="",
        highlight=False,
        soft_wrap=True,
    )
    return FAILED
