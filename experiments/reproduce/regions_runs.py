"""Measurements of `regions`; each starts its own processes and writes into the `Results`.

Of the proxy short of descriptors only the balancer is limited. A client connects, makes its calls and reconnects when
the connection closes; a request without a success response has failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from random import Random
from statistics import median

from experiments.errors import FleetFailedError
from experiments.generator.arrivals import closed
from experiments.generator.generator import Generator
from experiments.measured.fleet import all_ready
from experiments.measured.process_config import serve_argv
from experiments.measured.runner import measure
from experiments.platform.cpu_time import cpu_of, is_known_here
from experiments.platform.descriptors import open_files
from experiments.platform.processes import Child, all_of
from experiments.reproduce import launch
from experiments.reproduce.blocking_client import Target
from experiments.reproduce.client import ClientAnswer, OneCaller, failures
from experiments.reproduce.keepalive_runs import consecutive_calls
from experiments.reproduce.regions_cases import (
    PATIENCE,
    PLACES,
    ROUND_TRIPS,
    SCENARIO,
    SERVICE,
    AddedLatency,
    Concurrency,
    Overload,
    PolicyRun,
    RegionsPlan,
    Results,
    Throughput,
    Unloaded,
)
from experiments.reproduce.reproduction import ReportProgress
from experiments.results.directory import PlannedRun
from experiments.run_data import Kind, Place, Samples
from experiments.running.runner import Interrupted
from experiments.scenario.load import Load
from experiments.scenario.scenario import Scenario

ROUND_TRIP = 0.032
"""Round trip in seconds to the worker of `added_latency`: the source's cost of a new connection."""

SERVICE_TIME = 0.020
BUSY_CONNECTIONS = 64
"""Connections that keep the balancer busy."""

WARM_UP = 20
"""Warm-up requests to each worker before a run, and as many through the balancer."""


async def all_workers(stack: AsyncExitStack, time_scale: float = 1.0) -> list[Child]:
    """Start all six workers and wait until they are ready."""
    children = [await start(place, number, time_scale, stack) for number, place in enumerate(PLACES)]
    await all_ready(children)
    return children


async def start(place: Place, seed: int, time_scale: float, stack: AsyncExitStack) -> Child:
    """Start a one-slot worker as in the source, without waiting until it is ready."""
    argv = serve_argv(
        name=place.worker,
        region=place.region,
        rtt=f"{1e3 * ROUND_TRIPS[place.region]:g}ms",
        service=SERVICE,
        slots=1,
        queue=20_000,
        seed=seed,
        time_scale=time_scale,
    )
    return await launch.started(place.worker, argv, stack)


async def unloaded_latency(plan: RegionsPlan, workers: Sequence[Child], results: Results) -> None:
    """Call each worker sequentially, all workers in parallel."""

    async def call(place: Place, child: Child) -> None:
        with closing(OneCaller(*child.address)) as client:
            await client.ask()  # opens the connection
            answers = [await client.ask() for _ in range(plan.calls)]
        service = tuple(answer.service for answer in answers)
        took = tuple(answer.took for answer in answers)
        results.unloaded.append(Unloaded(place.worker, place.region, took, service))

    await all_of(call(place, child) for place, child in zip(PLACES, workers, strict=True))
    results.unloaded.sort(key=lambda one: (ROUND_TRIPS[one.region], one.worker))


async def loaded_workers(plan: RegionsPlan, workers: Sequence[Child], results: Results) -> None:
    """Direct closed-loop load on every worker, `batch` requests at a time: the source's warm-up."""
    loads = [closed_loop(child, plan.batch, plan.requests, 10 * PATIENCE) for child in workers]
    for place, samples in zip(PLACES, await asyncio.gather(*loads), strict=True):
        results.workers.append((place.worker, samples))


async def closed_loop(
    child: Child, at_once: int, requests: int, timeout: float, path: str = "/work"
) -> Samples:
    """Closed loop of `at_once` requests to a worker or balancer."""
    instants = closed(at_once, requests)
    generator = Generator(child.address, "load", PLACES, instants, requests, timeout, path=path)
    return (await generator.run(at_once)).samples()


async def growing_concurrency(plan: RegionsPlan, results: Results) -> None:
    """Increasing concurrency on one worker; each level has a worker of its own, all in parallel."""
    scale = plan.concurrency_scale
    async with AsyncExitStack() as stack:
        children = [await start(PLACES[0], at_once, scale, stack) for at_once in plan.concurrency]
        await all_ready(children)
        loads = [
            closed_loop(child, at_once, plan.concurrency_requests, PATIENCE * scale)
            for child, at_once in zip(children, plan.concurrency, strict=True)
        ]
        for at_once, samples in zip(plan.concurrency, await asyncio.gather(*loads), strict=True):
            results.concurrency.append(concurrency_of(at_once, samples, scale))


def concurrency_of(at_once: int, samples: Samples, scale: float) -> Concurrency:
    taken = samples.latency[samples.ok] / scale
    failed = int((samples.kind != Kind.OK).sum())
    p50, most = (float(median(taken)), float(taken.max())) if len(taken) else (float("nan"), float("nan"))
    return Concurrency(at_once, len(samples), failed, p50, most)


async def added_latency(plan: RegionsPlan, seed: int, folder: Path, results: Results) -> None:
    """The same calls direct, through the balancer, and through one without keep-alive, shuffled in every block."""
    async with AsyncExitStack() as stack:
        near = await launch.worker(
            stack,
            name="near",
            rtt=f"{1e3 * ROUND_TRIP:g}ms",
            service=f"fixed:{1e3 * SERVICE_TIME:g}ms",
            slots=2,
        )
        targets = {"direct": Target(*near.address)}
        for name, keeps in (("proxy", True), ("without_keep_alive", False)):
            address = "http://{}:{}".format(*near.address)
            keys = {"endpoints": [{"id": "near", "address": address, "keep_alive": keeps}]}
            targets[name] = Target(*(await launch.balancer(name, keys, folder, stack)).address)
        rng = Random(seed)
        for block in range(-1, plan.added_blocks):  # the first block is warm-up
            took = {}
            for name in rng.sample(list(targets), len(targets)):
                # the first call opens the client's connection
                calls = await asyncio.to_thread(consecutive_calls, targets[name], None, plan.added_calls + 1)
                took[name] = median(calls[1:])
            if block >= 0:
                results.added.append(AddedLatency(**took))


async def proxy_throughput(plan: RegionsPlan, folder: Path, results: Results) -> None:
    """Throughput and CPU cost of one balancer process with a worker that answers at once."""
    async with AsyncExitStack() as stack:
        keys = {"endpoints": [{"id": "w", "address": await launch.fast_worker(stack)}]}
        balancer = await launch.balancer("alone", keys, folder, stack)
        await forwarded(balancer, plan.forwarded // 4)
        before = cpu_of(balancer.pid).total if is_known_here() else None
        samples = await forwarded(balancer, plan.forwarded)
        cost = None if before is None else (cpu_of(balancer.pid).total - before) / len(samples)
        results.throughput = Throughput(len(samples) / samples.span, cost)


async def forwarded(balancer: Child, requests: int) -> Samples:
    """Closed loop through the balancer. Raises `FleetFailedError` if a request fails."""
    samples = await closed_loop(balancer, BUSY_CONNECTIONS, requests, PATIENCE, path="/")
    if failed := int((~samples.ok).sum()):
        raise FleetFailedError(f"the balancer failed {failed} of {requests} requests{balancer.tail}")
    return samples


def policy_scenario(plan: RegionsPlan) -> Scenario:
    """The scenario `regions` with the chosen policies and number of requests, in compressed time."""
    entries = tuple(entry for entry in SCENARIO.entries if entry.label in plan.policies)
    load = Load(mode="closed", batch=SCENARIO.load.batch, requests=plan.policy_requests)
    changes = {"entries": entries, "load": load, "time_scale": plan.policy_scale, "warmup": WARM_UP}
    return SCENARIO.model_copy(update=changes)


async def policy_times(plan: RegionsPlan, seed: int, results: Results, progress: ReportProgress) -> None:
    """Total time of the same requests with each policy: in every block each once in random order, with fresh processes.

    Raises `FleetFailedError`.
    """
    scenario, rng = policy_scenario(plan), Random(seed)
    for block in range(plan.policy_blocks):
        for order, policy in enumerate(rng.sample(plan.policies, len(plan.policies))):
            progress(f"policies, block {block + 1} of {plan.policy_blocks}: {policy}")
            planned = PlannedRun(block=block, order=order, label=policy, seed=seed + block)
            try:
                run = await measure(scenario, planned, lambda ledger: None)
            except Interrupted:
                raise asyncio.CancelledError from None
            samples = run.samples
            span = samples.span / plan.policy_scale
            results.policy_runs.append(PolicyRun(policy, block, span, int((~samples.ok).sum())))


OTHER_FILES = 400
"""Descriptors of this process besides those of clients."""


async def overloads(plan: RegionsPlan, folder: Path, results: Results) -> None:
    """Run each number of clients in order, as far as this process may open as many files."""
    limit = open_files()
    async with AsyncExitStack() as stack:
        workers = await all_workers(stack, plan.overload_scale)
        endpoints = [
            {"id": place.worker, "region": place.region, "address": "http://{}:{}".format(*worker.address)}
            for place, worker in zip(PLACES, workers, strict=True)
        ]
        keys = {"seed": 1, "policy": "least-in-flight", "endpoints": endpoints}
        for at_once, requests in plan.overloads:
            if at_once + OTHER_FILES > limit:
                results.skipped.append(
                    f"{at_once} clients at once: this process may open {limit:g} files (ulimit -Hn)"
                )
                continue
            async with AsyncExitStack() as inner:
                balancer = await launch.balancer(f"for {at_once}", keys, folder, inner, plan.descriptors)
                results.overloads.append(await overload(balancer, at_once, requests, plan.descriptors))


async def overload(balancer: Child, at_once: int, requests: int, descriptors: int) -> Overload:
    """Start all clients at once; each makes its share of the requests."""
    ended: list[float] = []
    answers: list[ClientAnswer] = []
    began_at = time.monotonic()

    async def calls(count: int) -> None:
        with closing(OneCaller(*balancer.address)) as client:
            for _ in range(count):
                answers.append(await client.ask())
                ended.append(time.monotonic() - began_at)

    await all_of(calls(count) for count in shares(requests, at_once))
    return Overload(at_once, requests, descriptors, failures(answers), tuple(ended))


def shares(requests: int, clients: int) -> list[int]:
    """Split `requests` into whole parts that differ by at most one."""
    each, more = divmod(requests, clients)
    return [each + (number < more) for number in range(clients)]
