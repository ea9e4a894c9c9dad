"""Parts of `regions`, a balancer in front of three regions: their measurement and their results.

Each part starts its own processes and adds to the `Results`. Latencies are in seconds of the source's time unless
stated otherwise. Of the proxy short of descriptors only the balancer is limited. A client connects, makes its calls and
reconnects when the connection closes; a request without a success response has failed.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

import numpy as np

from experiments.errors import FleetFailedError
from experiments.generator.arrivals import closed
from experiments.generator.generator import Generator
from experiments.measured.fleet import Fleet
from experiments.measured.runner import measure
from experiments.platform.cpu_time import cpu_of, is_known_here
from experiments.platform.descriptors import open_files
from experiments.platform.processes import Child, all_of
from experiments.reproduce import launch
from experiments.reproduce.blocking_client import Target, consecutive_calls
from experiments.reproduce.client import ClientAnswer, OneCaller
from experiments.reproduce.launch import Keys
from experiments.reproduce.reproduction import ReportProgress
from experiments.results.directory import PlannedRun
from experiments.run_data import Place, Samples
from experiments.running.runner import Interrupted
from experiments.scenario.files import load_scenario
from experiments.scenario.load import Load
from experiments.scenario.places import places_of
from experiments.scenario.scenario import Scenario

SCENARIO: Scenario = load_scenario("regions")
PLACES = places_of(SCENARIO)
ROUND_TRIPS = {region.name: region.rtt for region in SCENARIO.regions}
PATIENCE = 30.0
"""Seconds after which the source's platform answered 503 instead of the worker."""

SOURCE_POLICIES = ("random", "random (batch 10)", "single-region", "round-robin", "region-round-robin")
OURS = "region-aware"

ROUND_TRIP = 0.032
"""Round trip in seconds to the worker of `added_latency`: the source's cost of a new connection."""

BUSY_CONNECTIONS = 64
"""Connections that keep the balancer busy."""

WARM_UP = 20
"""Warm-up requests to each worker before a run, and as many through the balancer."""

OTHER_FILES = 400
"""Descriptors of this process besides those of clients."""


@dataclass(frozen=True, slots=True)
class RegionsPlan:
    """Amounts of each part. `…_scale` is the measured seconds per second of the source in that part.

    `concurrency`: requests at once before one worker; `overloads`: clients at once and requests before a balancer that
    may open `descriptors` files.
    """

    calls: int = 20
    batch: int = 100
    requests: int = 1500
    concurrency: tuple[int, ...] = (100, 500, 1000, 1500)
    concurrency_requests: int = 3000
    concurrency_scale: float = 0.5
    added_blocks: int = 30
    added_calls: int = 6
    forwarded: int = 12_000
    overloads: tuple[tuple[int, int], ...] = ((1000, 10_000), (10_000, 10_000))
    descriptors: int = 256
    overload_scale: float = 0.2
    policies: tuple[str, ...] = (*SOURCE_POLICIES, OURS, "latency-weighted", "least-in-flight")
    policy_requests: int = 1500
    policy_blocks: int = 3
    policy_scale: float = 0.2


QUICK = RegionsPlan(
    calls=2,
    requests=150,
    concurrency=(500, 1500),
    concurrency_requests=2000,
    concurrency_scale=0.1,
    added_blocks=4,
    added_calls=2,
    forwarded=1000,
    overloads=((1000, 1000),),
    overload_scale=0.1,
    policies=(*SOURCE_POLICIES, OURS),
    policy_requests=150,
    policy_blocks=1,
    policy_scale=0.1,
)
"""All rows of the source, with fewer requests."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Consecutive calls directly to a worker: response times and service times in seconds."""

    worker: str
    region: str
    took: tuple[float, ...]
    service: tuple[float, ...]

    @property
    def latency(self) -> float:
        """Median response time less service time."""
        return float(np.median(np.array(self.took) - np.array(self.service)))

    @property
    def platform(self) -> float:
        """Latency beyond the emulated network delay."""
        return self.latency - ROUND_TRIPS[self.region]


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Closed loop of `at_once` requests to one worker: requests, failures, and latency of successes."""

    at_once: int
    requests: int
    failed: int
    p50: float
    max: float


@dataclass(frozen=True, slots=True)
class AddedLatency:
    """Median seconds in one block: direct, through the balancer, and through one without keep-alive."""

    direct: float
    proxy: float
    without_keep_alive: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """Requests per second of one balancer process with an immediate worker, and CPU seconds of each, if known."""

    rate: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class Overload:
    """`at_once` clients in front of a balancer with `descriptors` open files. `ended` in measured seconds."""

    at_once: int
    requests: int
    descriptors: int
    failed: int
    ended: tuple[float, ...]

    @property
    def span(self) -> float:
        return max(self.ended, default=0.0)


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """All requests with one policy in one block: total seconds and failures."""

    policy: str
    block: int
    span: float
    failed: int


@dataclass(slots=True)
class Results:
    """Results of the parts measured so far; empty where a part was not measured."""

    unloaded: list[Unloaded] = field(default_factory=list)
    workers: list[tuple[str, Samples]] = field(default_factory=list)
    concurrency: list[Concurrency] = field(default_factory=list)
    added: list[AddedLatency] = field(default_factory=list)
    throughput: Throughput | None = None
    overloads: list[Overload] = field(default_factory=list)
    policy_runs: list[PolicyRun] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def spans(self) -> dict[str, list[float]]:
        """Seconds in each block by policy, in order of first appearance."""
        found: dict[str, list[float]] = {}
        for run in sorted(self.policy_runs, key=lambda run: run.block):
            found.setdefault(run.policy, []).append(run.span)
        return found


async def each_worker(plan: RegionsPlan, seed: int, results: Results, progress: ReportProgress) -> None:
    """Call each worker sequentially, then load each directly, all workers in parallel."""
    async with Fleet(SCENARIO, SCENARIO.entries[0], seed) as fleet:
        progress("calling each worker, one call after the other")
        pairs = list(zip(PLACES, fleet.workers, strict=True))
        results.unloaded += await asyncio.gather(
            *(unloaded(place, child, plan.calls) for place, child in pairs)
        )
        results.unloaded.sort(key=lambda one: (ROUND_TRIPS[one.region], one.worker))
        progress(f"{plan.requests} requests to each worker, {plan.batch} at once")
        loads = [closed_loop(child, plan.batch, plan.requests, 10 * PATIENCE) for child in fleet.workers]
        names = [place.worker for place in PLACES]
        results.workers += zip(names, await asyncio.gather(*loads), strict=True)


async def unloaded(place: Place, child: Child, calls: int) -> Unloaded:
    """Make calls one after the other on a connection that is open."""
    with closing(OneCaller(*child.address)) as client:
        await client.ask()  # opens the connection
        answers = [await client.ask() for _ in range(calls)]
    took, service = zip(*((answer.took, answer.service) for answer in answers), strict=True)
    return Unloaded(place.worker, place.region, took, service)


async def closed_loop(
    child: Child, at_once: int, requests: int, timeout: float, path: str = "/work"
) -> Samples:
    """Closed loop of `at_once` requests to a worker or balancer."""
    instants = closed(at_once, requests)
    generator = Generator(child.address, "load", PLACES, instants, requests, timeout, path=path)
    return (await generator.run(at_once)).samples()


async def growing_concurrency(plan: RegionsPlan, results: Results) -> None:
    """Increasing concurrency on one worker; each level has a worker of its own, all in parallel."""
    scale, region = plan.concurrency_scale, SCENARIO.regions[0]
    worker: Keys = {"rtt": f"{1e3 * region.rtt:g}ms", "service": region.service, "slots": 1, "queue": 20_000}
    async with AsyncExitStack() as stack:
        options = [{**worker, "seed": at_once, "time_scale": scale} for at_once in plan.concurrency]
        children = await launch.workers(stack, options)
        loads = [
            closed_loop(child, at_once, plan.concurrency_requests, PATIENCE * scale)
            for child, at_once in zip(children, plan.concurrency, strict=True)
        ]
        for at_once, samples in zip(plan.concurrency, await asyncio.gather(*loads), strict=True):
            results.concurrency.append(concurrency_of(at_once, samples, scale))


def concurrency_of(at_once: int, samples: Samples, scale: float) -> Concurrency:
    taken = samples.latency[samples.ok] / scale
    p50, most = (float(median(taken)), float(taken.max())) if len(taken) else (float("nan"), float("nan"))
    return Concurrency(at_once, len(samples), failed_in(samples), p50, most)


def failed_in(samples: Samples) -> int:
    """Number of requests without a success response."""
    return int((~samples.ok).sum())


async def added_latency(plan: RegionsPlan, seed: int, folder: Path, results: Results) -> None:
    """The same calls direct, through the balancer, and through one without keep-alive, shuffled in every block."""
    async with AsyncExitStack() as stack:
        rtt = f"{1e3 * ROUND_TRIP:g}ms"
        near = await launch.worker(stack, rtt=rtt, service="fixed:20ms", slots=2)
        targets = {"direct": Target(*near.address)}
        for name, keeps in (("proxy", True), ("without_keep_alive", False)):
            address = "http://{}:{}".format(*near.address)
            keys = {"endpoints": [{"id": "near", "address": address, "keep_alive": keeps}]}
            targets[name] = Target(*(await launch.balancer(name, keys, folder, stack)).address)

        def call(name: str) -> float:
            _, *rest = consecutive_calls(targets[name], None, plan.added_calls + 1)
            return median(rest)  # the first opens the client's connection

        async for took in launch.paired_blocks(targets, plan.added_blocks, seed, call):
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
    if failed := failed_in(samples):
        raise FleetFailedError(f"the balancer failed {failed} of {requests} requests{balancer.tail}")
    return samples


def policy_scenario(plan: RegionsPlan) -> Scenario:
    """The scenario `regions` with the chosen policies and number of requests, in compressed time."""
    entries = tuple(entry for entry in SCENARIO.entries if entry.label in plan.policies)
    load = Load(mode="closed", batch=SCENARIO.load.batch, requests=plan.policy_requests)
    changes = {"entries": entries, "load": load, "time_scale": plan.policy_scale, "warmup": WARM_UP}
    return SCENARIO.model_copy(update=changes)


async def policy_times(plan: RegionsPlan, seed: int, results: Results, progress: ReportProgress) -> None:
    """Total time by policy, in random order in every block, with fresh processes. Raises `FleetFailedError`."""
    scenario, rng = policy_scenario(plan), Random(seed)
    for block in range(plan.policy_blocks):
        for order, policy in enumerate(rng.sample(plan.policies, len(plan.policies))):
            progress(f"policies, block {block + 1} of {plan.policy_blocks}: {policy}")
            planned = PlannedRun(block=block, order=order, label=policy, seed=seed + block)
            try:
                run = await measure(scenario, planned, lambda ledger: None)
            except Interrupted:
                raise asyncio.CancelledError from None
            span = run.samples.span / plan.policy_scale
            results.policy_runs.append(PolicyRun(policy, block, span, failed_in(run.samples)))


async def overloads(plan: RegionsPlan, seed: int, folder: Path, results: Results) -> None:
    """Run each number of clients in order, as far as this process may open as many files."""
    limit = open_files()
    scenario = SCENARIO.model_copy(update={"time_scale": plan.overload_scale})
    async with Fleet(scenario, scenario.entries[0], seed) as fleet:
        endpoints = [fleet.endpoint(worker) for worker in range(len(PLACES))]
        keys = {"seed": 1, "policy": "least-in-flight", "endpoints": endpoints}
        for at_once, requests in plan.overloads:
            if at_once + OTHER_FILES > limit:
                results.skipped.append(
                    f"{at_once} clients at once: this process may open {limit:g} files (ulimit -Hn)"
                )
                continue
            async with AsyncExitStack() as stack:
                balancer = await launch.balancer(f"for {at_once}", keys, folder, stack, plan.descriptors)
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
    failed = sum(not one.is_ok for one in answers)
    return Overload(at_once, requests, descriptors, failed, tuple(ended))


def shares(requests: int, clients: int) -> list[int]:
    """Split `requests` into whole parts that differ by at most one."""
    return [len(range(number, requests, clients)) for number in range(clients)]
