"""Start balancers and workers and do the runs of the processes benchmark.

All balancers of a measurement run as long as it does and are loaded one at a time, so compared runs are seconds apart.
Only processes started here are stopped here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from benchmarks.harness import certificates, peer_files, peers
from benchmarks.harness.cases import Case
from benchmarks.harness.certificates import Certificate
from benchmarks.harness.peer_files import Site
from benchmarks.harness.peers import WORKER_PORTS
from benchmarks.harness.serving import folder_in, serving
from benchmarks.harness.verdicts import shuffled_blocks
from benchmarks.processes.measurements import (
    CASE,
    HANDSHAKES,
    LATENCY,
    MEASUREMENTS,
    PATH,
    SERVICE,
    WORKERS,
    Measurement,
    ProcessesRun,
    Setup,
    absence,
    burst,
    stretch,
)
from experiments.platform.ports import free_ports
from experiments.platform.processes import Child
from experiments.reproduce import launch

POLICY = "least-in-flight"
WORK = replace(CASE, path=PATH)


@dataclass(frozen=True, slots=True)
class ProcessesPlan:
    """Number of runs of each setup and their duration in seconds: bursts of throughput, stretches of latency."""

    bursts: int = 12
    burst: float = 3.0
    stretches: int = 12
    stretch: float = 8.0
    seed: int = 1
    key: tuple[str, ...] = certificates.RSA8192

    @property
    def measurements(self) -> list[Measurement]:
        """Those that can be made on this machine."""
        return [one for one in MEASUREMENTS.values() if not absence(one)]

    def size_of(self, measurement: Measurement) -> tuple[int, float]:
        """Runs of each setup, and seconds of each."""
        return (self.stretches, self.stretch) if measurement is LATENCY else (self.bursts, self.burst)

    @property
    def total(self) -> int:
        return sum(self.size_of(one)[0] * len(one.setups) for one in self.measurements)

    @property
    def seconds(self) -> float:
        """Approximate duration in seconds."""
        sizes = [(one, *self.size_of(one)) for one in self.measurements]
        return sum(runs * len(one.setups) * (seconds + 1) for one, runs, seconds in sizes)


QUICK = ProcessesPlan(bursts=1, burst=1.0, stretches=1, stretch=1.0, key=certificates.P256)

Observer = Callable[[ProcessesRun], None]
Measure = Callable[[Setup, ProcessesRun], Awaitable[ProcessesRun]]


async def run_plan(plan: ProcessesPlan, folder: Path, observe: Observer) -> None:
    """Run the whole plan and pass each result to `observe`. Raises `FleetFailedError` if a process does not start."""
    for measurement in plan.measurements:
        begin = latency if measurement is LATENCY else throughput
        async with AsyncExitStack() as stack:
            measure = await begin(plan, measurement, folder_in(folder, measurement.name), stack)
            blocks = shuffled_blocks(measurement.setups, plan.size_of(measurement)[0], Random(plan.seed))
            for block, setups in enumerate(blocks):
                for setup in setups:
                    observe(await measure(setup, ProcessesRun(measurement.name, setup.name, block)))


async def throughput(
    plan: ProcessesPlan, measurement: Measurement, folder: Path, stack: AsyncExitStack
) -> Measure:
    """Start a worker, and before it a balancer of each setup."""
    site = Site(0, tuple(free_ports(WORKER_PORTS)), folder_in(folder, "worker"))
    started = serving("worker", peers.worker_argv(site, CASE), site.workers[0], CASE, None)
    worker = await stack.enter_async_context(started)
    tls = certificates.certificate_in(folder, plan.key) if measurement is HANDSHAKES else None
    case = replace(CASE, is_tls=tls is not None)
    proxies = {
        setup: await balancer_before(
            site.workers, setup.processes, case, folder_in(folder, setup.name), stack, tls
        )
        for setup in measurement.setups
    }
    return lambda setup, run: burst(*proxies[setup], worker, plan.burst, setup, run)


async def latency(
    plan: ProcessesPlan, measurement: Measurement, folder: Path, stack: AsyncExitStack
) -> Measure:
    """Start workers, and before them a balancer of each setup."""
    each = {"queue": 1000, "region": "here", "service": f"exponential:{SERVICE * 1e3:g}ms"}
    options = [
        {**each, "name": f"here-{number}", "seed": plan.seed + number} for number in range(2 * WORKERS)
    ]
    ports = [child.address[1] for child in await launch.workers(stack, options)]
    proxies = {
        setup: await balancer_before(
            ports[: setup.workers], setup.processes, WORK, folder_in(folder, setup.name), stack
        )
        for setup in measurement.setups
    }
    return lambda setup, run: stretch(proxies[setup][1], plan.stretch, plan.seed, setup, run)


async def balancer_before(
    workers: Sequence[int],
    count: int,
    case: Case,
    folder: Path,
    stack: AsyncExitStack,
    tls: Certificate | None = None,
) -> tuple[Child, int]:
    """Start a balancer of `count` processes that answers `case`; returns it and its port."""
    port = next(free_ports(1))
    site = Site(port, tuple(workers), folder, tls)
    argv = peers.run_steelyard(site, peer_files.steelyard(site, POLICY, processes=count))
    return await stack.enter_async_context(serving(f"balancer of {count}", argv, port, case, None)), port
