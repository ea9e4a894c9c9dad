"""Runs of the cost benchmark: every peer once per block, in a fresh random order.

A run with an error, or whose peer does not start, is kept and marked invalid. Only processes started here are stopped
here.

CPU time per request is read before and after a closed-loop load, whose latency is not read: it is as fast as possible.
Memory is the growth of the proxy's proportional set size (PSS), in which shared pages are divided among their users;
the kernel's socket buffers are the same for every proxy and are not included.

The p99 of latency is measured in an open loop at half of the slowest proxy's capacity, at the same rate for all.
Latency counts from the scheduled instant, so it includes the generator's lag, other processes on the cores, and a
saturated generator core. A run in which one of these is large is repeated, then void. With two cores the generator has
one to itself, because a worker on the same core makes it late; the worker shares the proxy's.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import StreamWriter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random

from benchmarks.cost.plan import CostPlan, CostRun
from benchmarks.cost.table import run_in_words
from benchmarks.harness import peers
from benchmarks.harness.cases import FRESH, Kind
from benchmarks.harness.certificates import certificate_in
from benchmarks.harness.closed_load import Load
from benchmarks.harness.cpu_reading import CpuReading
from benchmarks.harness.open_load import LAG_PART, OpenLoad, Report, run_open_load
from benchmarks.harness.peer_files import Site
from benchmarks.harness.peers import WORKER_PORTS, Peer
from benchmarks.harness.serving import (
    BLOCKS_PER_PROCESS,
    RunningPeer,
    RunningPeers,
    folder_in,
    running_peers,
    serving,
)
from benchmarks.harness.verdicts import shuffled_blocks
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time
from experiments.platform.descriptors import allow_descriptors
from experiments.platform.instant_worker import SMALL
from experiments.platform.ports import free_ports
from experiments.platform.processes import Child
from experiments.platform.session import Session

CONNECTIONS = 32
"""Connections that send at the same time; a small number keeps upstream connections few."""

REHEARSAL = 200
"""Connections opened and closed before the first reading, so that one-time allocations are done."""

SETTLE = 0.6
"""Seconds to wait for periodic cleanups."""

SPARE_DESCRIPTORS = 200


async def memory(plan: CostPlan, peer: Peer, site: Site, run: CostRun) -> CostRun:
    """One run with a fresh process. Raises `FleetFailedError`."""
    allow_descriptors(plan.connections + SPARE_DESCRIPTORS)
    async with serving(peer.name, peer.argv(site), site.port, plan.case, plan.proxy_core) as child:
        async with idle(site.port, REHEARSAL):
            pass
        before = await held(child.pid)
        async with idle(site.port, plan.connections):
            after = await held(child.pid)
    return replace(run, figure=(after - before) / plan.connections, requests=plan.connections)


async def started(plan: CostPlan, peer: Peer, site: Site, run: CostRun) -> CostRun:
    """One start: its CPU time in ms until a request is answered, or then its memory in MiB. Raises
    `FleetFailedError`."""
    async with serving(peer.name, peer.argv(site), site.port, plan.case, plan.proxy_core) as child:
        spent = cpu_time.cpu_of(child.pid).total * 1e3
        figure = spent if plan.case.kind is Kind.START else await held(child.pid) / (1 << 20)
    return replace(run, figure=figure, requests=1)


async def held(pid: int) -> int:
    """PSS in bytes of a process and its descendants after settling. Raises `FleetFailedError`."""
    await asyncio.sleep(SETTLE)
    try:
        return sum(proportional_bytes(one) for one in (pid, *cpu_time.descendants(pid)))
    except OSError as error:
        raise FleetFailedError(f"the memory of process {pid} cannot be read: {error.strerror}") from None


def proportional_bytes(pid: int) -> int:
    """PSS of one process in bytes (proc(5), smaps_rollup). Raises `OSError`."""
    lines = (cpu_time.PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


@asynccontextmanager
async def idle(port: int, count: int) -> AsyncIterator[None]:
    """Hold `count` connections with one response each; closed on exit. Raises `FleetFailedError`."""
    writers: list[StreamWriter] = []
    try:
        while len(writers) < count:
            batch = min(CONNECTIONS, count - len(writers))
            writers += await asyncio.gather(*(connected(port) for _ in range(batch)))
        yield
    finally:
        for writer in writers:
            writer.close()


async def connected(port: int) -> StreamWriter:
    """Open a connection and complete one request on it. Raises `FleetFailedError`."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        await asyncio.wait_for(reader.readuntil(SMALL.encode()), 10.0)
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
        raise FleetFailedError(f"a connection got no answer: {error!r}") from None
    return writer


def total_cpu(children: Sequence[Child]) -> float:
    """CPU seconds of the processes until now."""
    return sum(cpu_time.cpu_of(child.pid).total for child in children)


PART = 0.5
"""Offered rate as a fraction of the slowest proxy's capacity."""

TAKEN_PART = 0.2
"""Limit on the share of the cores used by other processes: they cause tail latency."""

BUSY_PART = 0.85
"""Limit on the utilisation of the generator's core: beyond it requests wait for the generator."""

FULL_PART = 0.9
"""Least utilisation of its core at a proxy's capacity; below, something else was the limit."""

ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Capacity:
    """Closed-loop requests per second, and the utilisation of the proxy's core by the benchmark."""

    rate: float
    used: float


def judged(run: CostRun, report: Report, rate: float, taken: float = 0.0) -> CostRun:
    """The run with the report's figures; `taken` is the share of the cores used by others."""
    return replace(
        run,
        figure=report.p99,
        requests=report.requests,
        rate=rate,
        taken=taken,
        lag=report.lag,
        busy=report.busy,
        load_cpu=report.cpu,
        waited=report.waited,
        fault=fault_in_words(report),
        void=doubt(report, taken),
    )


def fault_in_words(report: Report) -> str:
    """Failed requests by kind as text; empty if none failed."""
    if not report.failed:
        return ""
    kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.failures.items())
    return f"{report.failed} requests failed" + (f" ({kinds})" if kinds else "")


def doubt(report: Report, taken: float) -> str:
    """Reason why a run is void; empty if it is usable."""
    if taken > TAKEN_PART:
        return f"other processes took {taken:.0%} of the cores"
    if report.busy > BUSY_PART:
        return f"the generator's core was {report.busy:.0%} in use, at most {BUSY_PART:.0%} is allowed"
    if report.lag <= LAG_PART * report.p99:  # false if one of them is nan
        return ""
    return f"the generator was {report.lag:.2f} ms late itself, of {report.p99:.2f} ms"


def capacities_in_words(capacities: dict[str, Capacity], rate: float) -> str:
    found = ", ".join(f"{name} {one.rate:.0f}/s" for name, one in capacities.items())
    slowest = min(capacities.values(), key=lambda one: one.rate, default=Capacity(0.0, 1.0))
    doubt = (
        ""
        if slowest.used >= FULL_PART
        else f" (the slowest used {slowest.used:.0%} of its core: the load or other processes limited it)"
    )
    return f"capacity: {found}{doubt}; offered to each: {rate:.0f}/s"


class Environment:
    """Environment of the runs of one case: worker ports, load and a folder for files."""

    def __init__(self, plan: CostPlan, folder: Path, ports: tuple[int, ...], worker: Child) -> None:
        self._plan = plan
        self._folder = folder
        self._ports = ports
        self._worker = worker
        self._certificate = certificate_in(folder) if plan.case.is_tls else None
        self._load = Load(plan.case, plan.connections, plan.wrk, folder)
        self._place = partial(cpu_time.pinned_to, plan.rest_core)
        self._rate = 0.0  # offered in an open loop

    def site(self, peer: Peer, name: str) -> Site:
        """Placement for a fresh process; several endpoints may share an address."""
        workers = tuple(islice(cycle(self._ports), peer.endpoints or WORKER_PORTS))
        return Site(
            next(free_ports(1)),
            workers,
            folder_in(self._folder, name),
            self._certificate,
            is_http2=bool(self._plan.case.streams),
            is_streamed=self._plan.case.is_streamed,
        )

    async def prepare(self) -> str:
        """Find the offered rate if the case needs it; returns a description. Raises `FleetFailedError`."""
        if self._plan.case.kind is not Kind.TAIL:
            return ""
        capacities = {
            peer.name: await self._capacity(peer, self.site(peer, f"capacity-{number}"))
            for number, peer in enumerate(self._plan.peers)
        }
        self._rate = PART * min((found.rate for found in capacities.values()), default=0.0)
        return capacities_in_words(capacities, self._rate)

    async def _capacity(self, peer: Peer, site: Site) -> Capacity:
        plan = self._plan
        async with serving(peer.name, peer.argv(site), site.port, plan.case, plan.proxy_core) as child:
            there = [child, self._worker] if plan.worker_core == plan.proxy_core else [child]
            await self._load.run(site.port, plan.warm_up, self._place)
            spent, began_at = total_cpu(there), time.monotonic()
            outcome = await self._load.run(site.port, plan.seconds, self._place)
            used = (total_cpu(there) - spent) / (time.monotonic() - began_at)
        if outcome.fault:
            raise FleetFailedError(f"the capacity of {peer.name} is not known: {outcome.fault}")
        return Capacity(outcome.rate, used)

    def running_peers(self, life: int) -> AbstractAsyncContextManager[RunningPeers]:
        """Start the peers for some blocks; none where each run starts its own process."""
        peers = () if self._plan.case.kind in FRESH else self._plan.peers
        return running_peers(
            peers,
            lambda peer: self.site(peer, f"{life}-{peers.index(peer)}"),
            self._plan.case,
            self._plan.proxy_core,
        )

    async def measured(self, peer: Peer, proxies: RunningPeers, run: CostRun) -> CostRun:
        """Measure one run; a failure is recorded as its fault."""
        kind = self._plan.case.kind
        try:
            if kind in FRESH:
                measure = memory if kind is Kind.MEMORY else started
                return await measure(self._plan, peer, self.site(peer, f"run-{run.block}-{run.order}"), run)
            return await self._loaded(peer, proxies.of(peer), run)
        except FleetFailedError as failure:
            return CostRun(run.case, run.peer, run.block, run.order, fault=str(failure))

    async def _loaded(self, peer: Peer, proxy: RunningPeer, run: CostRun) -> CostRun:
        """Load a running process; an open loop is repeated until the generator is punctual. Raises
        `FleetFailedError`."""
        plan = self._plan
        load = replace(self._load, connections=peer.connections or plan.connections)
        await load.run(proxy.port, plan.warm_up, self._place)
        try:
            if plan.case.kind is not Kind.TAIL:
                return await self._cost(load, proxy, run)
            for _ in range(ATTEMPTS):
                run = await self._latency(proxy, run)
                if not run.void:
                    break
            return run
        except OSError:
            raise proxy.died() from None

    async def _cost(self, load: Load, proxy: RunningPeer, run: CostRun) -> CostRun:
        before = self._reading(proxy)
        outcome = await load.run(proxy.port, self._plan.seconds, self._place)
        spent = self._reading(proxy).since(before)
        return replace(
            run,
            figure=spent.proxy.total / max(1, outcome.requests) * 1e6,
            requests=outcome.requests,
            rate=outcome.rate,
            user_share=spent.proxy.user_share,
            taken=spent.taken,
            fault=outcome.fault,
        )

    async def _latency(self, proxy: RunningPeer, run: CostRun) -> CostRun:
        """One open loop, with the same arrivals for every peer of the block."""
        plan, seed = self._plan, self._plan.seed + run.block
        load = OpenLoad(
            proxy.port, plan.case.path, self._rate, plan.seconds, plan.connections, seed, plan.is_load_alone
        )
        before = self._reading(proxy)
        report = await run_open_load(load, self._place)
        return judged(run, report, self._rate, self._reading(proxy).since(before).taken)

    def _reading(self, proxy: RunningPeer) -> CpuReading:
        return CpuReading.now(proxy.child, self._worker, self._plan.cores)


async def run_plan(plan: CostPlan, folder: Path, session: Session, runs: list[CostRun]) -> None:
    """Run the whole plan, append each run to `runs` and show it. Raises `FleetFailedError` if the worker fails."""
    ports = tuple(free_ports(WORKER_PORTS))
    worker = Site(ports[0], ports, folder_in(folder, "worker"))
    argv = peers.worker_argv(worker, plan.case)
    blocks = list(enumerate(shuffled_blocks(plan.peers, plan.blocks, Random(plan.seed))))
    async with serving("worker", argv, ports[0], peers.worker_case(plan.case), plan.worker_core) as serves:
        environment = Environment(plan, folder, ports, serves)
        session.say(await environment.prepare())
        for first in range(0, len(blocks), BLOCKS_PER_PROCESS):
            async with environment.running_peers(first) as proxies:
                for block, in_order in blocks[first : first + BLOCKS_PER_PROCESS]:
                    for order, peer in enumerate(in_order):
                        name = f"block {block + 1}, {peer.name}"
                        session.run_started(name)
                        run = CostRun(plan.case.name, peer.name, block, order)
                        runs.append(run := await environment.measured(peer, proxies, run))
                        session.run_ended(name, run_in_words(run, plan.case.kind), run.fault)
