"""Start balancers and workers and do the runs of the processes benchmark.

All balancers of a part run as long as the part and are loaded one at a time, so compared runs are seconds apart. Only
processes started here are stopped here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from benchmarks.processes.throughput import (
    CASE,
    HANDSHAKES,
    PARTS,
    PATH,
    SERVICE,
    SETUPS,
    BalancerSetup,
    LatencyRun,
    ThroughputRun,
    absence,
    burst,
    stretch,
)
from experiments.platform.ports import free_ports
from experiments.platform.processes import Child
from experiments.reproduce import launch

COUNTS = (1, 2)
POLICY = "least-in-flight"
WORK = replace(CASE, path=PATH)


@dataclass(frozen=True, slots=True)
class ProcessesPlan:
    """Number of runs of each kind and their duration in seconds."""

    bursts: int = 12
    burst: float = 3.0
    stretches: int = 12
    stretch: float = 8.0
    seed: int = 1
    key: tuple[str, ...] = certificates.RSA8192

    @property
    def parts(self) -> list[str]:
        """Parts that can be measured on this machine."""
        return [part for part in PARTS if not absence(part)]

    @property
    def total(self) -> int:
        return self.bursts * len(COUNTS) * len(self.parts) + self.stretches * len(SETUPS)

    @property
    def seconds(self) -> float:
        """Approximate duration in seconds."""
        bursts = self.bursts * len(COUNTS) * len(self.parts) * (self.burst + 1)
        return bursts + self.stretches * len(SETUPS) * (self.stretch + 1)


QUICK = ProcessesPlan(bursts=1, burst=1.0, stretches=1, stretch=1.0, key=certificates.P256)

Observer = Callable[[ThroughputRun | LatencyRun], None]


async def run_plan(plan: ProcessesPlan, folder: Path, observe: Observer) -> None:
    """Run the whole plan and pass each result to `observe`. Raises `FleetFailedError` if a process does not start."""
    async with AsyncExitStack() as stack:
        await throughput(plan, folder_in(folder, "throughput"), stack, observe)
    async with AsyncExitStack() as stack:
        await latency(plan, folder_in(folder, "latency"), stack, observe)


async def throughput(plan: ProcessesPlan, folder: Path, stack: AsyncExitStack, observe: Observer) -> None:
    """Throughput of one and of two processes in alternation: handshakes, then requests."""
    site = Site(0, tuple(free_ports(WORKER_PORTS)), folder_in(folder, "worker"))
    started = serving("worker", peers.worker_argv(site, CASE), site.workers[0], CASE, None)
    worker = await stack.enter_async_context(started)
    rng = Random(plan.seed)
    for part in plan.parts:
        own = folder_in(folder, part)
        tls = certificates.certificate_in(own, plan.key) if part == HANDSHAKES else None
        case = replace(CASE, is_tls=tls is not None)
        proxies = {
            count: await balancer_before(site.workers, count, case, folder_in(own, f"of-{count}"), stack, tls)
            for count in COUNTS
        }
        for block, counts in enumerate(shuffled_blocks(COUNTS, plan.bursts, rng)):
            for count in counts:
                proxy, port = proxies[count]
                observe(await burst(proxy, port, worker, plan.burst, ThroughputRun(part, count, block)))


async def latency(plan: ProcessesPlan, folder: Path, stack: AsyncExitStack, observe: Observer) -> None:
    """Latency of all setups in alternation, in front of the same workers."""
    count = max(one.workers for one in SETUPS)
    each = {"queue": 1000, "region": "here", "service": f"exponential:{SERVICE * 1e3:g}ms"}
    options = [{**each, "name": f"here-{number}", "seed": plan.seed + number} for number in range(count)]
    workers = await launch.workers(stack, options)
    ports = [child.address[1] for child in workers]
    proxies: dict[BalancerSetup, int] = {}
    for number, setup in enumerate(SETUPS):
        place = folder_in(folder, str(number))
        _, proxies[setup] = await balancer_before(ports[: setup.workers], setup.processes, WORK, place, stack)
    for block, setups in enumerate(shuffled_blocks(SETUPS, plan.stretches, Random(plan.seed))):
        for setup in setups:
            observe(await stretch(setup, block, proxies[setup], plan.stretch, plan.seed))


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
