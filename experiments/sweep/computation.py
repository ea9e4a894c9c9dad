"""Computation of cells by local processes, which may die, or by a Dask cluster.

Both are a `concurrent.futures.Executor`. Dask is an optional dependency, imported only with `--scheduler`.

When a local process dies, its whole pool is lost. A new pool then computes the cells that were in flight one at a
time, so that the cell that ends its process is found and the others are not failed with it.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from experiments.errors import BadInputError, FleetFailedError
from experiments.platform.terminal import signals_handled
from experiments.simulator.run import Simulate
from experiments.sweep.cells import Cell
from experiments.sweep.outcome import CellOutcome, compute, one_line

CONNECT_WITHIN = 10
"""Seconds within which a Dask scheduler must answer."""


@dataclass(frozen=True, slots=True)
class Computers:
    """An executor, and the number of cells that it computes at the same time, as far as known."""

    executor: Executor
    count: Callable[[], int]


@contextmanager
def local_processes(count: int) -> Iterator[Computers]:
    """`count` local processes; on an exception they are killed, as a cell may take minutes.

    Processes are spawned, since a fork of a process with threads may deadlock.
    """
    others = set(multiprocessing.active_children())
    spawning = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=spawning, initializer=end_with_parent)
    try:
        with signals_handled(signal.SIG_IGN, (signal.SIGINT,)):
            # Each of these starts a process, as none is idle yet: all inherit that they ignore Ctrl-C, which a terminal
            # sends to the driver's whole process group, and the pool notices the death only of processes that were
            # there when it last had a result.
            wait([pool.submit(int) for _ in range(count)])
        yield Computers(pool, lambda: count)
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def end_with_parent() -> None:
    """End this process when its parent has ended, even in the middle of a cell. Runs in each local process."""
    parent = multiprocessing.parent_process()

    def exit_after_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()


@contextmanager
def dask_cluster(scheduler: str) -> Iterator[Computers]:
    """The workers of a Dask scheduler that runs already; they are left as they are.

    Raises `BadInputError` without Dask, `FleetFailedError` when the scheduler cannot be reached.
    """
    distributed = dask()
    for name in list(logging.root.manager.loggerDict):  # errors are reported in one line instead
        if name.startswith(("distributed", "tornado")):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        asyncio.run(reach(scheduler, distributed))
        client = distributed.Client(scheduler, set_as_default=False, timeout=CONNECT_WITHIN)
    except (OSError, TimeoutError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise FleetFailedError(f"--scheduler: no answer from {scheduler}: {reason}") from None
    with client:
        yield Computers(client.get_executor(), lambda: sum(client.nthreads().values()))


async def reach(scheduler: str, distributed: Any) -> None:
    """Connect once. A client that cannot connect leaves a thread that delays the end of this process.

    Raises `OSError`, `TimeoutError`, and `ValueError` for an address of an unknown kind.
    """
    security = distributed.Security().get_connection_args("client")
    comm = await import_module("distributed.comm").connect(scheduler, timeout=CONNECT_WITHIN, **security)
    await comm.close()


def dask() -> Any:
    """Import Dask, which has no useful types. Raises `BadInputError` without it."""
    try:
        return import_module("distributed")
    except ImportError:
        raise BadInputError(
            "--scheduler needs Dask, which is not installed: pip install '.[sweep]' in the checkout"
        ) from None


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
