"""Computation of cells by an executor, whose processes may die.

When a local process dies, its whole pool is lost. A new pool then computes the cells that were in flight one at a
time, so that the cell that ends its process is found and the others are not failed with it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager

from experiments.errors import FleetFailedError
from experiments.simulator.run import Simulate
from experiments.sweep.cells import Cell
from experiments.sweep.executor import Computers
from experiments.sweep.outcome import CellOutcome, compute, one_line

CELLS_AHEAD = 2
"""Cells submitted ahead per process, so that none waits for the driver."""

MIN_SUBMITTED_CELLS = 4
"""Minimum number of submitted cells, also while no worker of a cluster has reported yet."""

MOST_DEATHS = 2
"""Processes that one cell may end before it has failed."""

DIED = "its process died each time, perhaps for want of memory"
GONE = "the Dask scheduler is gone; what was computed is in the catalogue, and the same command goes on"


class Computation:
    """Compute `cells`; `ended` is called with each cell and its outcome, in order of completion."""

    def __init__(
        self,
        cells: Sequence[Cell],
        simulate: Simulate,
        keep_samples: bool,
        ended: Callable[[Cell, CellOutcome], None],
    ) -> None:
        self._waiting = deque(cells)
        self._suspects = deque[Cell]()
        self._running = dict[Future[CellOutcome], Cell]()
        self._deaths = Counter[str]()
        self._simulate = simulate
        self._keep_samples = keep_samples
        self._ended = ended

    def run(self, open_computers: Callable[[], AbstractContextManager[Computers]]) -> None:
        """Compute all cells, with a new pool whenever one is lost. Raises `FleetFailedError` without a scheduler."""
        while self._waiting or self._suspects:
            with open_computers() as computers:
                try:
                    self._compute(computers)
                except BrokenProcessPool:
                    self._collect_suspects()

    def _compute(self, computers: Computers) -> None:
        self._submit(computers)
        while self._running:
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            for future in done:
                outcome = outcome_of(future)
                self._ended(self._running.pop(future), outcome)
            self._submit(computers)

    def _submit(self, computers: Computers) -> None:
        most = 1 if self._suspects else max(MIN_SUBMITTED_CELLS, CELLS_AHEAD * computers.count())
        while len(self._running) < most and (queue := self._suspects or self._waiting):
            cell = queue.popleft()
            try:
                future = computers.executor.submit(compute, cell, self._simulate, self._keep_samples)
            except BrokenProcessPool:
                queue.appendleft(cell)
                raise
            self._running[future] = cell
            if most == 1:
                return

    def _collect_suspects(self) -> None:
        """Record what was finished when the pool was lost; the other cells in flight become suspects."""
        wait(self._running)
        lost = list[Cell]()
        for future, cell in self._running.items():
            if isinstance(future.exception(), BrokenProcessPool):
                lost.append(cell)
            else:
                self._ended(cell, outcome_of(future))
        self._running.clear()
        if len(lost) == 1:
            self._deaths[lost[0].identity] += 1
            if self._deaths[lost[0].identity] >= MOST_DEATHS:
                self._ended(lost.pop(), CellOutcome({}, DIED, 0.0, ""))
        self._suspects.extend(lost)


def outcome_of(future: Future[CellOutcome]) -> CellOutcome:
    """Outcome of a future; a failure to send, compute or fetch becomes an outcome with a message.

    Raises `BrokenProcessPool`, `FleetFailedError` when the scheduler is gone.
    """
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except (CancelledError, OSError):
        raise FleetFailedError(GONE) from None
    except Exception as fault:
        return CellOutcome({}, f"could not be sent or fetched: {one_line(fault)}", 0.0, "")
