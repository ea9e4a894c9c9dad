"""Execution of cells on Dask workers: local processes, or an existing cluster.

Only this module uses Dask. It is an optional dependency and is imported only when a sweep begins.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from experiments.errors import BadInputError, FleetFailedError
from experiments.sweep import preload
from experiments.sweep.cells import Cell
from experiments.sweep.outcome import Outcome, Simulate, compute

AHEAD = 2
"""Cells submitted ahead per worker, so that it never waits for the driver."""

FEW = 4
"""Minimum number of submitted cells, also while no worker has reported yet."""

GONE = "cancelled", "lost"
"""States of a future whose scheduler is gone."""

GONE_IN_WORDS = (
    "the Dask scheduler is gone; what was computed is in the catalogue, and the same command goes on"
)


class Cluster:
    """Wrapper of a Dask client that submits cells and yields their outcomes."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def threads(self) -> int:
        """Number of cells that can be computed at the same time, as far as known."""
        facts = self._client.scheduler_info()
        return int(facts.get("total_threads", sum(w["nthreads"] for w in facts["workers"].values())))

    async def outcomes(
        self, cells: Iterable[Cell], simulate: Simulate, keep_samples: bool
    ) -> AsyncIterator[tuple[Cell, Outcome]]:
        """Yield every cell with its outcome in order of completion.

        Raises `FleetFailedError` when the scheduler is gone.
        """
        waiting, running = deque(cells), dict[Any, Cell]()
        ended = dask().as_completed(loop=self._client.loop)

        def give() -> None:
            while waiting and len(running) < max(FEW, AHEAD * self.threads):
                cell = waiting.popleft()
                future = self._submit(cell, simulate, keep_samples)
                running[future] = cell
                ended.add(future)

        give()
        async for future in ended:
            cell = running.pop(future)
            yield cell, await outcome_of(future)
            future.release()
            give()

    def _submit(self, cell: Cell, simulate: Simulate, keep_samples: bool) -> Any:
        """Submit a cell; the key includes the client's id, since another driver may use the same scheduler."""
        key = f"{cell.identity}-{self._client.id}"
        return self._client.submit(compute, cell, simulate, keep_samples, key=key, pure=False)


async def outcome_of(future: Any) -> Outcome:
    """Outcome of a future; a failure of the worker becomes an outcome with a message."""
    if future.status in GONE:
        raise FleetFailedError(GONE_IN_WORDS)
    try:
        answer = await future
    except dask().KilledWorker:
        return Outcome({}, "every worker that computed it died, perhaps for want of memory", 0.0, "")
    except OSError:
        raise FleetFailedError(GONE_IN_WORDS) from None
    except Exception as fault:
        return Outcome({}, f"could not be sent or fetched: {' '.join(str(fault).split())}", 0.0, "")
    assert isinstance(answer, Outcome)
    return answer


@asynccontextmanager
async def joined(scheduler: str | None, workers: int | None) -> AsyncIterator[Cluster]:
    """Context manager of a cluster: the one at `scheduler`, or `workers` local processes of one thread.

    Local processes are stopped at exit. Raises `BadInputError` without Dask, `FleetFailedError` when the scheduler
    cannot be reached.
    """
    dask()
    silence_dask()
    if scheduler is None:
        async with of_processes(workers or os.cpu_count() or 1) as cluster:
            yield cluster
    else:
        async with at_address(scheduler) as cluster:
            yield cluster


def dask() -> Any:
    """Import Dask lazily; it has no useful types. Raises `BadInputError` without it."""
    try:
        return import_module("distributed")
    except ImportError:
        raise BadInputError(
            "a sweep needs Dask, which is not installed: pip install 'steelyard[sweep]'"
        ) from None


def silence_dask() -> None:
    """Silence Dask's loggers, each of which sets its own level; errors are reported in one line instead."""
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)


HERE = "127.0.0.1"


@asynccontextmanager
async def of_processes(count: int) -> AsyncIterator[Cluster]:
    """Local worker processes that listen on loopback only; a worker that dies is restarted.

    Dask's scheduler always serves HTTP; on its default port it would collide with that of another sweep and warn.
    """
    local = dask().LocalCluster(
        n_workers=count,
        threads_per_worker=1,
        processes=True,
        host=HERE,
        dashboard_address=f"{HERE}:0",
        scheduler_kwargs={"dashboard": False},
        asynchronous=True,
        silence_logs=logging.CRITICAL,
        preload=[preload.__name__],
    )
    async with local, dask().Client(local, asynchronous=True, set_as_default=False) as client:
        yield Cluster(client)


@asynccontextmanager
async def at_address(scheduler: str) -> AsyncIterator[Cluster]:
    """Client of an existing scheduler, whose workers are left as they are."""
    client = dask().Client(scheduler, asynchronous=True, set_as_default=False, timeout=10)
    try:
        await client
    except (OSError, TimeoutError, ValueError) as error:
        await client.close()
        reason = str(error).splitlines()[0]
        raise FleetFailedError(f"--scheduler: nobody answers at {scheduler}: {reason}") from None
    async with client:
        yield Cluster(client)
