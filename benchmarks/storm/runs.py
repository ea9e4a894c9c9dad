"""Run one proxy in one storm: fresh workers, a fresh proxy, the load, and the scheduled faults.

All proxies of a round get the same faults and requests; rounds differ by their seed. Only processes started here are
stopped here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from benchmarks.harness.blocks import shuffled_blocks
from benchmarks.harness.cpu_reading import CpuReading
from benchmarks.harness.descriptors import allow_descriptors
from benchmarks.harness.peers import Peer, Site
from benchmarks.harness.serving import folder_in, serving
from benchmarks.harness.steal_time import Spans, disturbances, widened
from benchmarks.harness.verified.account import Account
from benchmarks.harness.verified.balancer import CHECK
from benchmarks.harness.verified.load_process import VerifiedLoad, loading
from benchmarks.harness.verified.worker_group import Executions
from benchmarks.storm.fault_injection import FaultyWorkers
from benchmarks.storm.plan import Episode, Pace, schedule
from experiments.errors import FleetFailedError
from experiments.platform.ports import free_ports


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: proxies, schedule, rounds and core assignment."""

    peers: tuple[Peer, ...]
    pace: Pace
    rounds: int
    seed: int
    proxy_core: int
    rest_core: int
    looks_well: bool = False
    """Whether health checks pass on a worker with an active fault."""


@dataclass(frozen=True, slots=True)
class Storm:
    """Raw result of one proxy in one storm. `episodes` have the actual times of the faults."""

    peer: str
    round: int
    episodes: tuple[Episode, ...] = ()
    account: Account | None = None
    executions: Executions = field(default_factory=Executions)
    busy: tuple[float, float] = (0.0, 0.0)
    """Utilisation of the proxy's core and of the core of all else, including other processes."""

    disturbed: Spans = ()
    """Spans in which the host took a core away, and shortly after, in seconds from the zero."""

    fault: str = ""


async def run_plan(plan: Plan, folder: Path, observe: Callable[[Storm], None]) -> None:
    """Run the whole plan and pass each result to `observe`."""
    allow_descriptors()
    for number, peers in enumerate(shuffled_blocks(plan.peers, plan.rounds, Random(plan.seed))):
        for order, peer in enumerate(peers):
            own = folder_in(folder, f"run-{number}-{order}")
            try:
                observe(await run_storm(plan, peer, number, own))
            except FleetFailedError as failure:
                observe(Storm(peer.name, number, fault=str(failure)))


async def run_storm(plan: Plan, peer: Peer, number: int, folder: Path) -> Storm:
    """One proxy in one storm. Raises `FleetFailedError`."""
    seed = plan.seed + number
    async with FaultyWorkers(folder, plan.rest_core, plan.looks_well) as workers:
        site = Site(next(free_ports(1)), workers.ports, folder)
        async with serving(peer.name, peer.argv(site), site.port, CHECK, plan.proxy_core) as child:
            file, pace = folder / "account.npz", plan.pace
            load = VerifiedLoad(site.port, pace.rate, pace.seconds, pace.posts, seed)
            cores = plan.proxy_core, plan.rest_core
            async with (
                disturbances(sorted({*cores})) as taken,
                loading(load, file, plan.rest_core) as zero,
            ):
                await workers.start_replacements(episodes := schedule(plan.pace, seed), zero)
                before = CpuReading.now(None, cores=cores)
                episodes = await inject_all(workers, episodes, zero)
            spent = CpuReading.now(None, cores=cores).since(before)
            proxy_busy, rest_busy = (seconds / spent.at for seconds in spent.cores)
            fault = "" if child.is_running else f"{peer.name} died{child.tail}"
        return Storm(
            peer.name,
            number,
            tuple(episodes),
            Account.load(file),
            workers.executions(),
            (proxy_busy, rest_busy),
            widened(taken, zero),
            fault,
        )


async def inject_all(workers: FaultyWorkers, episodes: list[Episode], zero: float) -> list[Episode]:
    """Inject the faults in order; returns them with their actual times. Raises `FleetFailedError`."""
    found = []
    for episode in episodes:
        try:
            at, until = await workers.inject(episode, zero)
        except OSError as error:  # the worker has ended by itself
            raise FleetFailedError(f"a fault could not be injected: {error}") from None
        found.append(replace(episode, at=at, until=until))
    return found
