"""Driver of a sweep: determine the missing cells, have them computed, and store them in the catalogue.

A second driver would compute the same cells again, so the first holds a lock, which the kernel releases when its
process ends. The empty lock file stays, because deleting it would be a race.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from experiments.errors import STOPPED, BadInputError
from experiments.platform.terminal import LivePanel, clock, print_stopped, signals_interrupt
from experiments.scenario.supported import doubts_about_keys
from experiments.simulator.run import Simulate
from experiments.sweep import catalogue as catalogues
from experiments.sweep.catalogue import Catalogue, CellRow
from experiments.sweep.cells import Cell, cells_of
from experiments.sweep.computation import Computation, Computers, dask, dask_cluster, local_processes
from experiments.sweep.grid import Grid
from experiments.sweep.matrix import left_out
from experiments.sweep.outcome import CellOutcome, version_of
from experiments.sweep.sentences import omissions

LINE_EVERY = 10.0
"""Seconds between two lines without a terminal."""

SHOWN_FAILURES = 5
"""Maximum number of failures that are printed; the catalogue contains all."""


class Progress(LivePanel):
    """Observer of a sweep over `missing` of `planned` cells."""

    def __init__(self, planned: int, missing: Sequence[Cell], console: Console) -> None:
        super().__init__(console)
        self._planned = planned
        self._left = len(missing)
        self._size_left = sum(cell.size for cell in missing)
        self._size_done = 0
        self._began_at = self._said_at = time.monotonic()
        self._done = 0
        self.failed = 0
        """Number of cells that failed in this execution."""
        self.threads: Callable[[], int] = lambda: 0

    def cell_ended(self, cell: Cell, outcome: CellOutcome) -> None:
        """Count a cell that has been stored in the catalogue."""
        self._done += 1
        self._left -= 1
        self._size_done += cell.size
        self._size_left -= cell.size
        if outcome.message is not None:
            self._print_failure(cell, outcome.message)
        if not self._console.is_terminal and time.monotonic() - self._said_at >= LINE_EVERY:
            self._said_at = time.monotonic()
            self._console.print(self.line(), highlight=False, soft_wrap=True)

    def _print_failure(self, cell: Cell, message: str) -> None:
        self.failed += 1
        if self.failed <= SHOWN_FAILURES:
            words = f" {cell.scenario.name}, {cell.entry.label}, seed {cell.seed}: {message}"
            self._console.print(Text.assemble(("failed", "red"), words), soft_wrap=True)

    def line(self) -> str:
        """Status line: `cell 120 of 400 12.3 cells/s 0 failed 2 workers elapsed 0:10 left 0:23`."""
        elapsed = time.monotonic() - self._began_at
        rate = self._done / elapsed if elapsed else 0.0
        left = clock(elapsed * self._size_left / self._size_done) if self._size_done else "–"
        threads = self.threads()
        return (
            f"cell {self._planned - self._left} of {self._planned}   {rate:.1f} cells/s   "
            f"{self.failed} failed   {threads} worker{'' if threads == 1 else 's'}   "
            f"elapsed {clock(elapsed)}   left {left}"
        )

    def panel(self) -> Table:
        table = Table.grid()
        table.add_row(self.line())
        done = self._planned - self._left
        table.add_row(ProgressBar(total=self._planned or 1, completed=done, width=60))
        return table


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
        known = f", {len(cells) - len(missing)} of them known already" if len(missing) < len(cells) else ""
        console.print(f"{len(cells)} cells{known}, into {options.out}", highlight=False, soft_wrap=True)
        for line in doubts_about_keys(
            one for cell in cells[: len(cells) // len(grid.seeds)] for one in cell.scenario.without_keys()
        ):
            console.print(Text(line, style="yellow"), soft_wrap=True)
        progress = Progress(len(cells), missing, console)
        try:
            with signals_interrupt(), progress:
                compute_missing(missing, catalogue, options, simulate, progress)
        except KeyboardInterrupt:
            left = len(missing_of(cells, catalogue, options.keep_samples))
            print_stopped(console, f"{left} cells are missing; the same command goes on with them.")
            return STOPPED
        print_invalid(catalogue.rows(grid.name), options.out, console)
    return farewell(progress, options.out, console)


def print_invalid(rows: Sequence[CellRow], catalogue: Path, console: Console) -> None:
    """Print how many cells are invalid, if any are."""
    invalid = {kind: count for kind, count in left_out(rows).items() if kind == "invalid"}
    for words in omissions(invalid, len(rows)):
        reasons = f" `experiments show {catalogue}` shows the reasons."
        console.print(Text(words, style="yellow"), reasons, sep="", highlight=False, soft_wrap=True)


def missing_of(cells: list[Cell], catalogue: Catalogue, keep_samples: bool) -> list[Cell]:
    """Cells without a result, including failed ones."""
    finished = catalogue.finished(keep_samples)
    return [cell for cell in cells if cell.identity not in finished]


def compute_missing(
    missing: list[Cell], catalogue: Catalogue, options: SweepOptions, simulate: Simulate, progress: Progress
) -> None:
    """Compute cells and store each in the catalogue before the next outcome is handled.

    On the chosen cluster, or on as many local processes as chosen, as there are processors, at most as many as cells.
    """

    def ended(cell: Cell, outcome: CellOutcome) -> None:
        catalogue.record(cell, outcome)
        progress.cell_ended(cell, outcome)

    @contextmanager
    def opened() -> Iterator[Computers]:
        count = min(options.workers or os.cpu_count() or 1, len(missing))
        scheduler = options.scheduler
        with local_processes(count) if scheduler is None else dask_cluster(scheduler) as computers:
            progress.threads = computers.count
            yield computers

    Computation(missing, simulate, options.keep_samples, ended).run(opened)


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
