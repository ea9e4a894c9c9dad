"""Measurements of the keep-alive matrix: workers, a balancer, and sequential calls to them.

One call at a time on the whole machine; every block visits every cell once in random order, so that temporary slowness
affects all cells alike.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

from experiments.errors import FleetFailedError
from experiments.reproduce import launch
from experiments.reproduce.blocking_client import Connection, Target, client_context
from experiments.reproduce.keepalive_matrix import CELLS, UNIT, Cell, Setup, Visit
from experiments.reproduce.launch import BalancerFile

NAP = 0.002


async def run_plan(setup: Setup, seed: int, folder: Path, progress: Callable[[Visit], None]) -> None:
    """Visit every cell `setup.visits` times. Raises `FleetFailedError`."""
    async with AsyncExitStack() as stack:
        far = await targets_of(setup, folder, stack)
        near = await targets_of(replace(setup, one_way=0.0), folder, stack)
        targets = far | {cell.twin: target for cell, target in near.items()}
        rng = Random(seed)
        for block in range(-1, setup.visits):  # the first block is warm-up and is not reported
            for cell in rng.sample(list(targets), len(targets)):
                visit = await asyncio.to_thread(visited, cell, targets[cell], setup.calls, block)
                if block >= 0:
                    progress(visit)


async def targets_of(setup: Setup, folder: Path, stack: AsyncExitStack) -> dict[Cell, Target]:
    """Start workers and a balancer; returns the target of each cell."""
    workers = {
        (tls, http): await worker(setup, tls, http, None, stack)
        for tls in ("1.2", "1.3")
        for http in ("1.1", "2")
    }
    own = await worker(setup, UNIT.tls, UNIT.http, setup.calls, stack)
    unit = await unit_before(own, folder, stack)
    return {cell: workers[cell.tls, cell.http] for cell in CELLS} | {UNIT: unit}


async def worker(setup: Setup, tls: str, http: str, most: int | None, stack: AsyncExitStack) -> Target:
    """Start a worker behind the emulated delay and wait until it is ready."""
    child = await launch.worker(
        stack,
        rtt=f"{2e3 * setup.one_way:g}ms" if setup.one_way else None,
        service=f"fixed:{1e3 * setup.service:g}ms",
        tls=tls,
        http=http,
        split_head=http == "2" or None,
        max_requests_per_connection=most,
    )
    return Target(*child.address, tls, http)


async def unit_before(target: Target, folder: Path, stack: AsyncExitStack) -> Target:
    """Start the balancer on the client's side of the link, in front of one worker."""
    endpoint = {"id": "far", "region": "far", "address": f"https://{target.authority}"}
    file = BalancerFile(tables={"upstream_tls": {"verify": False}}, endpoints=[endpoint])
    return Target(*(await launch.unit("unit", file, folder, stack)).address)


def visited(cell: Cell, target: Target, calls: int, block: int) -> Visit:
    """Make one visit. Raises `FleetFailedError`."""
    try:
        # A new context has no session, so none is resumed. Made before the clock starts.
        context = client_context(target)
        lag = lateness()
        each = 1 if not cell.keep_alive else calls
        took = [seconds for _ in range(calls // each) for seconds in kept(target, context, each)]
    except (OSError, TimeoutError) as failure:
        raise FleetFailedError(f"{cell.name}: {failure}") from None
    return Visit(cell, block, took[0], tuple(took[1:]), lag)


def lateness() -> float:
    """Oversleeping of a sleep of 2 ms, in seconds."""
    due_at = time.perf_counter() + NAP
    time.sleep(NAP)
    return time.perf_counter() - due_at


def kept(target: Target, context: ssl.SSLContext | None, calls: int) -> list[float]:
    """Seconds of each of `calls` requests on one connection; the first includes the handshakes."""
    took, began_at = [], time.perf_counter()
    connection = Connection(target, context)
    try:
        for _ in range(calls):
            answer = connection.call()
            ended_at = time.perf_counter()
            took.append(ended_at - began_at)
            began_at = ended_at
            if answer.status != 200:
                raise FleetFailedError(f"{target.authority} answered {answer.status}")
    finally:
        connection.close()
    return took
