"""The measuring itself: every peer once per block, in a fresh random order, a fresh process for each run.

Rule of this file: only what is started here is ended here, whatever happens. A run with an error, or one whose peer
does not start, is kept and marked, never counted.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

from experiments import bench_cpu, peers, processes
from experiments.bench_load import Case, Load
from experiments.errors import FleetFailedError
from experiments.peers import Peer, Site
from experiments.processes import Child

WORKERS = 4
"""Endpoints of every proxy, so that there is something to choose; one process listens on all of their ports."""

WARM_UP = 0.5
"""Seconds of load before each run: connections are made and interpreters have specialised their code."""

READY_WITHIN = 20.0
LOOK_AGAIN = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured and how, and on which cores."""

    peers: tuple[Peer, ...]
    case: Case
    connections: int
    seconds: float
    blocks: int
    seed: int
    proxy_core: int
    rest_core: int
    wrk: str | None


@dataclass(frozen=True, slots=True)
class Run:
    """One peer, once. Times in seconds of processor, `rate` in requests per second."""

    peer: str
    block: int
    order: int
    requests: int
    rate: float
    cpu: float
    user_share: float
    taken: float
    """Part of the proxy's core that was taken by processes that are not the bench's, 0 to 1."""

    fault: str

    @property
    def cost(self) -> float:
        """Microseconds of processor time per forwarded request."""
        return self.cpu / max(1, self.requests) * 1e6


class Observer(Protocol):
    """Who looks on."""

    def run_started(self, block: int, peer: Peer) -> None: ...
    def run_ended(self, run: Run) -> None: ...


def order_of(plan: Plan) -> list[list[Peer]]:
    """The peers of every block, in the order in which they run."""
    rng = Random(plan.seed)
    return [rng.sample(plan.peers, len(plan.peers)) for _ in range(plan.blocks)]


async def carry_out(plan: Plan, folder: Path, observer: Observer) -> None:
    """Do all runs; each is told to `observer` as soon as it has ended. Raises FleetFailedError without a worker."""
    ports = tuple(free_ports(WORKERS))
    worker = Site(ports[0], ports, folder_in(folder, "worker"))
    load = Load(plan.case, plan.connections, plan.wrk, folder)
    async with serving("worker", peers.worker_argv(worker), ports[0], plan.case, plan.rest_core) as serves:
        for block, in_order in enumerate(order_of(plan)):
            for order, peer in enumerate(in_order):
                observer.run_started(block, peer)
                site = Site(next(free_ports(1)), ports, folder_in(folder, f"run-{block}-{order}"))
                try:
                    run = await measured(plan, load, serves, peer, site, block, order)
                except FleetFailedError as failure:
                    run = Run(peer.name, block, order, 0, 0.0, 0.0, 0.0, 0.0, str(failure))
                observer.run_ended(run)


async def measured(
    plan: Plan, load: Load, worker: Child, peer: Peer, site: Site, block: int, order: int
) -> Run:
    """One run with a fresh process."""
    place = partial(bench_cpu.pinned_to, plan.rest_core)
    async with serving(peer.name, peer.argv(site), site.port, plan.case, plan.proxy_core) as child:
        await load.run(site.port, min(WARM_UP, plan.seconds), place)
        try:
            before = Reading.now(child, worker, plan)
            outcome = await load.run(site.port, plan.seconds, place)
            after = Reading.now(child, worker, plan)
        except OSError:
            raise FleetFailedError(f"{peer.name} died while it was measured{child.tail}") from None
    spent, taken = after.proxy - before.proxy, after.taken_since(before)
    cost = {"cpu": spent.total, "user_share": spent.user_share, "taken": taken}
    return Run(peer.name, block, order, outcome.requests, outcome.rate, **cost, fault=outcome.fault)


@dataclass(frozen=True, slots=True)
class Reading:
    """The accounts at one instant: the proxy's, those of all of ours on its core, and the core's own, in seconds."""

    at: float
    proxy: bench_cpu.Cpu
    ours: float
    core: float

    @classmethod
    def now(cls, proxy: Child, worker: Child, plan: Plan) -> Reading:
        """Raises OSError when a process is gone."""
        spent = bench_cpu.cpu_of(proxy.pid)
        ours = spent.total
        if plan.proxy_core == plan.rest_core:
            ours += bench_cpu.cpu_of(worker.pid).total + bench_cpu.cpu_of_ended_children()
        return cls(time.monotonic(), spent, ours, bench_cpu.busy_seconds(plan.proxy_core))

    def taken_since(self, before: Reading) -> float:
        """Part of the core that others have had in between."""
        others = (self.core - before.core) - (self.ours - before.ours)
        return min(1.0, max(0.0, others / (self.at - before.at)))


@asynccontextmanager
async def serving(name: str, argv: list[str], port: int, case: Case, core: int) -> AsyncIterator[Child]:
    """A process that answers the case's path on `port`, gone when the block is left."""
    with bench_cpu.pinned_to(core):
        child = await processes.start(name, argv)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(child.stop)
        await answering(child, port, case)
        yield child


async def answering(child: Child, port: int, case: Case) -> None:
    """Wait until it answers 200. Raises FleetFailedError."""
    give_up_at, last = time.monotonic() + READY_WITHIN, "nothing"
    while time.monotonic() < give_up_at:
        if not child.is_running:
            await asyncio.sleep(LOOK_AGAIN)  # for the end of its standard error
            raise FleetFailedError(f"{child.name} ended before it was ready{child.tail}")
        last = await status_line(port, case.path) or last
        if " 200 " in last:
            return
        await asyncio.sleep(LOOK_AGAIN)
    raise FleetFailedError(f"{child.name} did not forward within {READY_WITHIN:g} s: {last}{child.tail}")


async def status_line(port: int, path: str) -> str:
    """The first line of the answer to a GET; empty when there is none."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode())
                return (await reader.readline()).decode("latin-1").strip()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""


def free_ports(count: int) -> Iterator[int]:
    """Ports of the loopback that are free now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    yield from ports


def folder_in(folder: Path, name: str) -> Path:
    """A new folder for the files of one process."""
    made = folder / name
    made.mkdir()
    return made
