"""Progress of a sweep: a bar on a terminal, otherwise a line at intervals.

Read-only. The remaining time is estimated by requests and not by cells, because cells differ in size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from experiments.platform.terminal import LivePanel, clock
from experiments.sweep.cells import Cell
from experiments.sweep.outcome import CellOutcome

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
        """Status line above a progress bar."""
        table = Table.grid()
        table.add_row(self.line())
        done = self._planned - self._left
        table.add_row(ProgressBar(total=self._planned or 1, completed=done, width=60))
        return table
