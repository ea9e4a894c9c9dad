"""Where cells are computed: Dask workers, processes of this machine or of a cluster that is there already.

Rule of this file: nothing else knows Dask. It is an extra of the installation and is loaded only when a sweep begins.
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
"""Cells that each worker is given before it asks, so that it never waits for the driver."""

FEW = 4
"""Cells under way while no worker has reported yet."""

GONE = "cancelled", "lost"
"""States of a future whose scheduler is no more."""

GONE_IN_WORDS = (
    "the Dask scheduler is gone; what was computed is in the catalogue, and the same command goes on"
)


class Cluster:
    """Dask behind two questions: how many workers, and what came out."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def threads(self) -> int:
        """Cells that can be computed at the same time, as far as is known."""
        facts = self._client.scheduler_info()
        return int(facts.get("total_threads", sum(w["nthreads"] for w in facts["workers"].values())))

    async def outcomes(
        self, cells: Iterable[Cell], simulate: Simulate, keep_samples: bool
    ) -> AsyncIterator[tuple[Cell, Outcome]]:
        """Every cell with what came out, as they end. Raises FleetFailedError when the scheduler is gone."""
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
        """The key names the driver too: another one may use the same scheduler."""
        key = f"{cell.identity}-{self._client.id}"
        return self._client.submit(compute, cell, simulate, keep_samples, key=key, pure=False)


async def outcome_of(future: Any) -> Outcome:
    """What a worker answered, or in words why none could."""
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
    """A cluster: the one at `scheduler`, or `workers` processes of one thread each, which end with it.

    Raises BadInputError without Dask, FleetFailedError when nobody answers at the address.
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
    """The library, loaded when it is needed; it has no types worth the name. Raises BadInputError without it."""
    try:
        return import_module("distributed")
    except ImportError:
        raise BadInputError(
            "a sweep needs Dask, which is not installed: pip install 'steelyard[sweep]'"
        ) from None


def silence_dask() -> None:
    """What goes wrong, we say in one line; Dask gives each of its loggers a level of its own."""
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)


HERE = "127.0.0.1"


@asynccontextmanager
async def of_processes(count: int) -> AsyncIterator[Cluster]:
    """Workers that nobody else can reach; each is started again when it dies.

    Dask's scheduler serves HTTP however it is asked; on its usual port it would meet another sweep's, with a warning.
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
    """A scheduler that somebody else started; its workers are left as they are."""
    client = dask().Client(scheduler, asynchronous=True, set_as_default=False, timeout=10)
    try:
        await client
    except (OSError, TimeoutError, ValueError) as error:
        await client.close()
        reason = str(error).splitlines()[0]
        raise FleetFailedError(f"--scheduler: nobody answers at {scheduler}: {reason}") from None
    async with client:
        yield Cluster(client)
