"""Measurements of the evaluation; each starts its own processes and writes its results into the `Evaluation`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from statistics import median

from experiments.cpu_time import cpu_of, is_known_here
from experiments.errors import FleetFailedError
from experiments.load.arrivals import closed
from experiments.load.generator import Generator
from experiments.ports import free_ports
from experiments.processes import Child, program
from experiments.reproduce import launch
from experiments.reproduce.api_calls import all_of
from experiments.reproduce.blocking_client import Target
from experiments.reproduce.client import Client
from experiments.reproduce.evaluation import (
    PATIENCE,
    PLACES,
    SERVICE,
    TRIPS,
    Added,
    Calm,
    Crowd,
    Evaluation,
    Load,
    Setup,
)
from experiments.reproduce.header_share import listening
from experiments.reproduce.keepalive_runs import kept
from experiments.reproduce.launch import BalancerFile
from experiments.run.fleet import all_ready
from experiments.stats.samples import Kind, Place, Samples

TRIP = 0.032
"""Round trip in seconds to the worker of the comparison: the source's cost of a new connection."""

WORK = 0.020
BUSY = 64
"""Connections that keep the balancer busy."""


async def six(stack: AsyncExitStack, time_scale: float = 1.0) -> list[Child]:
    """Start all six workers and wait until they are ready."""
    children = [await started(place, number, time_scale, stack) for number, place in enumerate(PLACES)]
    await all_ready(children)
    return children


async def started(place: Place, seed: int, time_scale: float, stack: AsyncExitStack) -> Child:
    """Start a one-slot worker as in the source, without waiting until it is ready."""
    argv = launch.worker_argv(
        name=place.worker,
        region=place.region,
        rtt=f"{1e3 * TRIPS[place.region]:g}ms",
        service=SERVICE,
        slots=1,
        queue=20_000,
        seed=seed,
        time_scale=time_scale,
    )
    return await launch.started(place.worker, argv, stack)


async def calm(setup: Setup, workers: Sequence[Child], found: Evaluation) -> None:
    """Call each worker sequentially, all workers in parallel."""

    async def one(place: Place, child: Child) -> None:
        connection = Client(*child.address)
        await connection.ask()  # opens the connection
        answers = [await connection.ask() for _ in range(setup.calls)]
        connection.close()
        worked = tuple(answer.service for answer in answers)
        found.calm.append(Calm(place.worker, place.region, tuple(answer.took for answer in answers), worked))

    await all_of(one(place, child) for place, child in zip(PLACES, workers, strict=True))
    found.calm.sort(key=lambda one: (TRIPS[one.region], one.worker))


async def machines(setup: Setup, workers: Sequence[Child], found: Evaluation) -> None:
    """Direct closed-loop load on every worker, `batch` requests at a time: the source's warm-up."""
    loads = [load_of(child, setup.batch, setup.requests, 10 * PATIENCE) for child in workers]
    for place, samples in zip(PLACES, await asyncio.gather(*loads), strict=True):
        found.machines.append((place.worker, samples))


async def load_of(child: Child, at_once: int, requests: int, timeout: float) -> Samples:
    """Closed loop directly to one worker."""
    generator = Generator(child.address, "load", PLACES, closed(at_once, requests), requests, timeout)
    return (await generator.run(at_once)).samples()


async def crowds(setup: Setup, found: Evaluation) -> None:
    """Increasing concurrency on one worker; each level has a worker of its own, all in parallel."""
    scale = setup.crowd_scale
    async with AsyncExitStack() as stack:
        children = [await started(PLACES[0], at_once, scale, stack) for at_once in setup.crowds]
        await all_ready(children)
        loads = [
            load_of(child, at_once, setup.crowd_requests, PATIENCE * scale)
            for child, at_once in zip(children, setup.crowds, strict=True)
        ]
        for at_once, samples in zip(setup.crowds, await asyncio.gather(*loads), strict=True):
            found.crowds.append(crowd_of(at_once, samples, scale))


def crowd_of(at_once: int, samples: Samples, scale: float) -> Crowd:
    taken = samples.latency[samples.ok] / scale
    failed = int((samples.kind != Kind.OK).sum())
    p50, most = (float(median(taken)), float(taken.max())) if len(taken) else (float("nan"), float("nan"))
    return Crowd(at_once, len(samples), failed, p50, most)


async def added(setup: Setup, seed: int, folder: Path, found: Evaluation) -> None:
    """The same calls direct, through the balancer, and through one without keep-alive, shuffled in every block."""
    async with AsyncExitStack() as stack:
        near = await launch.worker(
            stack, name="near", rtt=f"{1e3 * TRIP:g}ms", service=f"fixed:{1e3 * WORK:g}ms", slots=2
        )
        host, port = near.address
        targets = {"direct": Target(host, port)}
        for name, keeps in (("unit", True), ("fresh", False)):
            endpoint = {"id": "near", "address": f"http://{host}:{port}", "keep_alive": keeps}
            unit = await launch.unit(name, BalancerFile(endpoints=[endpoint]), folder, stack)
            targets[name] = Target(*unit.address)
        rng = Random(seed)
        for block in range(-1, setup.blocks):  # the first block is warm-up
            took = {}
            for name in rng.sample(list(targets), len(targets)):
                # the first call of a visit opens the client's connection
                visit = await asyncio.to_thread(kept, targets[name], None, setup.each + 1)
                took[name] = median(visit[1:])
            if block >= 0:
                found.added.append(Added(**took))


async def bottleneck(setup: Setup, folder: Path, found: Evaluation) -> None:
    """Throughput and CPU cost of one balancer process with a worker that answers at once."""
    async with AsyncExitStack() as stack:
        port = next(free_ports(1))
        worker = await launch.started("worker", [*program("benchmarks.harness.worker"), str(port)], stack)
        await listening(worker, port)
        endpoint = {"id": "w", "address": f"http://127.0.0.1:{port}"}
        unit = await launch.unit("alone", BalancerFile(endpoints=[endpoint]), folder, stack)
        await forward(unit, setup.forwarded // 4)
        before = cpu_of(unit.pid).total if is_known_here() else None
        samples = await forward(unit, setup.forwarded)
        cost = None if before is None else (cpu_of(unit.pid).total - before) / len(samples)
        found.load = Load(len(samples) / samples.span, cost)


async def forward(unit: Child, requests: int) -> Samples:
    """Closed loop through the balancer. Raises `FleetFailedError` if a request fails."""
    instants = closed(BUSY, requests)
    generator = Generator(unit.address, "busy", PLACES, instants, requests, PATIENCE, path="/")
    samples = (await generator.run(BUSY)).samples()
    if not samples.ok.all():
        raise FleetFailedError(
            f"the unit failed {int((~samples.ok).sum())} of {requests} requests{unit.tail}"
        )
    return samples
