"""Run one proxy in one storm: fresh workers, a fresh proxy, the load, and the scheduled faults.

All proxies of a round get the same faults and requests; rounds differ by their seed. Only processes started here are
stopped here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.harness.cpu_reading import CpuReading
from benchmarks.harness.peer_files import Site
from benchmarks.harness.peers import Peer
from benchmarks.harness.serving import folder_in, serving, status_line
from benchmarks.harness.verdicts import shuffled_blocks
from benchmarks.harness.verified.account import Account
from benchmarks.harness.verified.load_process import CHECK, VerifiedLoad, loading
from benchmarks.harness.verified.messages import WORKERS
from benchmarks.harness.verified.worker_group import Executions, WorkerGroup
from benchmarks.storm.plan import KILLED, STOPPED, Episode, Pace, schedule
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time
from experiments.platform.descriptors import open_files
from experiments.platform.ports import free_ports
from experiments.platform.processes import Child

CONTROL_WITHIN = 5.0

LOOK = 0.1
"""Seconds between two readings of steal time: spans in which the hypervisor took a core away, from the kernel's
accounting. It alone decides, never measured values, so excluding these seconds is not biased by the latencies in them.
"""

BEFORE, AFTER = 0.05, 0.2
"""Seconds around a span that count as disturbed: requests in flight before, and the backlog after."""

Spans = tuple[tuple[float, float], ...]
"""Disjoint ascending spans (start, end), in seconds of one clock."""


@asynccontextmanager
async def disturbances(
    cores: Sequence[int], stolen: Callable[[Sequence[int]], float] = cpu_time.stolen_seconds
) -> AsyncIterator[list[tuple[float, float]]]:
    """Watch `cores` while the block runs; yields a growing list of spans between two readings in which any was stolen.

    Instants of `time.monotonic()`. The kernel counts in ticks of 10 ms, so smaller pieces show when they add up to one.
    """
    found: list[tuple[float, float]] = []
    watching = asyncio.ensure_future(_watch(partial(stolen, cores), found))
    try:
        yield found
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(stolen: Callable[[], float], found: list[tuple[float, float]]) -> None:
    at, before = time.monotonic(), stolen()
    while True:
        await asyncio.sleep(LOOK)
        now, total = time.monotonic(), stolen()
        if total > before:
            found.append((at, now))
        at, before = now, total


def widened(spans: Sequence[tuple[float, float]], zero: float) -> Spans:
    """Spans in seconds from `zero`, extended by `BEFORE` and `AFTER`, overlapping ones merged."""
    found: list[tuple[float, float]] = []
    for start, end in spans:
        since, until = start - zero - BEFORE, end - zero + AFTER
        if found and since <= found[-1][1]:
            since = found.pop()[0]
        found.append((since, until))
    return tuple(found)


class FaultyWorkers(WorkerGroup):
    """Workers that faults can be injected into; health checks pass on faulty ones if `looks_well`."""

    def __init__(self, folder: Path, core: int, looks_well: bool = False) -> None:
        super().__init__(folder, core)
        self._unseen = "/unseen" if looks_well else ""
        self._spare: dict[tuple[str, float], Child] = {}

    async def start_replacements(self, episodes: Sequence[Episode], zero: float) -> None:
        """Start the replacements of workers that will be killed: starting them under load would disturb it."""
        for episode in episodes:
            if episode.fault == KILLED:
                for name in episode.workers:
                    back_at = zero + episode.until
                    self._spare[name, back_at] = await self._start(name, back_at)

    async def inject(self, episode: Episode, zero: float) -> tuple[float, float]:
        """Inject one fault and wait until it ends; returns its actual start and end, in seconds from `zero`."""
        await asyncio.sleep(max(0.0, zero + episode.at - time.monotonic()))
        began_at = time.monotonic() - zero
        do = {KILLED: self._kill, STOPPED: self._freeze}.get(
            episode.fault, partial(self._set_fault_state, episode.fault)
        )
        await asyncio.gather(*(do(name, zero + episode.until) for name in episode.workers))
        return began_at, time.monotonic() - zero

    async def _kill(self, name: str, back_at: float) -> None:
        child = self._children[name]
        os.kill(child.pid, signal.SIGKILL)
        self._children[name] = self._spare.pop((name, back_at))
        await self._children[name].ready()

    async def _freeze(self, name: str, back_at: float) -> None:
        child = self._children[name]
        child.pause()
        try:
            await asyncio.sleep(max(0.0, back_at - time.monotonic()))
        finally:
            child.resume()

    async def _set_fault_state(self, fault_state: str, name: str, back_at: float) -> None:
        port = self.ports[WORKERS.index(name)]
        await send_control(port, f"/-/{fault_state}{self._unseen}")
        await asyncio.sleep(max(0.0, back_at - time.monotonic()))
        await send_control(port, "/-/well")


async def send_control(port: int, path: str) -> None:
    """Send a control request to a worker and wait for its response. Raises `FleetFailedError` without one."""
    if not await status_line(port, path, within=CONTROL_WITHIN):
        raise FleetFailedError(f"a fault could not be injected: no response to {path} on port {port}")


@dataclass(frozen=True, slots=True)
class StormPlan:
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


async def run_plan(plan: StormPlan, folder: Path, observe: Callable[[Storm], None]) -> None:
    """Run the whole plan and pass each result to `observe`."""
    open_files()
    for number, peers in enumerate(shuffled_blocks(plan.peers, plan.rounds, Random(plan.seed))):
        for order, peer in enumerate(peers):
            own = folder_in(folder, f"run-{number}-{order}")
            try:
                observe(await run_storm(plan, peer, number, own))
            except FleetFailedError as failure:
                observe(Storm(peer.name, number, fault=str(failure)))


async def run_storm(plan: StormPlan, peer: Peer, number: int, folder: Path) -> Storm:
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
