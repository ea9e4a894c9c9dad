"""Executors that compute the cells of a sweep: local processes, or a Dask cluster.

Both are a `concurrent.futures.Executor`. Dask is an optional dependency, imported only with `--scheduler`.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from experiments.errors import BadInputError, FleetFailedError
from experiments.platform.terminal import signals_handled

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
    if parent is not None:
        threading.Thread(target=exit_after, args=(parent.join,), daemon=True).start()


def exit_after(wait: Callable[[], None]) -> None:
    """Wait, then end this process at once."""
    wait()
    os._exit(1)


@contextmanager
def dask_cluster(scheduler: str) -> Iterator[Computers]:
    """The workers of a Dask scheduler that runs already; they are left as they are.

    Raises `BadInputError` without Dask, `FleetFailedError` when the scheduler cannot be reached.
    """
    distributed = dask()
    silence_dask()
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


def silence_dask() -> None:
    """Silence the loggers of Dask and of its event loop; errors are reported in one line instead."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith(("distributed", "tornado"))]
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
