"""Runs of the cost benchmark: every peer once per block, in a fresh random order.

A run with an error, or whose peer does not start, is kept and marked invalid. Only processes started here are stopped
here.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from random import Random

from benchmarks.cost.cost import cost
from benchmarks.cost.memory import memory
from benchmarks.cost.plan import Plan, Run
from benchmarks.cost.table import in_words
from benchmarks.cost.tail import Tail
from benchmarks.harness import peers
from benchmarks.harness.blocks import shuffled_blocks
from benchmarks.harness.cases import Kind
from benchmarks.harness.certificates import certificate_in
from benchmarks.harness.closed_load import Load
from benchmarks.harness.peer_processes import BLOCKS_PER_PROCESS, RunningPeers, running_peers
from benchmarks.harness.peers import WORKER_PORTS, Peer, Site
from benchmarks.harness.serving import folder_in, serving
from benchmarks.harness.session import Session
from experiments.errors import FleetFailedError
from experiments.platform.ports import free_ports
from experiments.platform.processes import Child


class Environment:
    """Environment of the runs of one case: worker ports, load and a folder for files."""

    def __init__(self, plan: Plan, folder: Path, ports: tuple[int, ...], worker: Child) -> None:
        self._plan = plan
        self._folder = folder
        self._ports = ports
        self._worker = worker
        self._certificate = certificate_in(folder) if plan.case.is_tls else None
        self._load = Load(plan.case, plan.connections, plan.wrk, folder)
        self._tail = Tail(plan, self._load, worker)

    def site(self, peer: Peer, name: str) -> Site:
        """Placement for a fresh process; several endpoints may share an address."""
        workers = tuple(islice(cycle(self._ports), peer.endpoints or WORKER_PORTS))
        return Site(
            next(free_ports(1)),
            workers,
            folder_in(self._folder, name),
            self._certificate,
            is_http2=bool(self._plan.case.streams),
        )

    async def prepare(self) -> str:
        """Find the offered rate if the case needs it; returns a description. Raises `FleetFailedError`."""
        if self._plan.case.kind is not Kind.TAIL:
            return ""
        sites = [(peer, self.site(peer, f"capacity-{n}")) for n, peer in enumerate(self._plan.peers)]
        return await self._tail.find_rate(sites)

    def running_peers(self, life: int) -> AbstractAsyncContextManager[RunningPeers]:
        """Start the peers for some blocks; none in the memory case, where each run starts its own process."""
        peers = () if self._plan.case.kind is Kind.MEMORY else self._plan.peers
        return running_peers(
            peers,
            lambda peer: self.site(peer, f"{life}-{peers.index(peer)}"),
            self._plan.case,
            self._plan.proxy_core,
        )

    async def measured(self, peer: Peer, proxies: RunningPeers, run: Run) -> Run:
        """Measure one run; a failure is recorded as its fault."""
        try:
            if self._plan.case.kind is Kind.TAIL:
                return await self._tail.measured(proxies.of(peer), run)
            if self._plan.case.kind is Kind.MEMORY:
                return await memory(self._plan, peer, self.site(peer, f"run-{run.block}-{run.order}"), run)
            load = replace(self._load, connections=peer.connections or self._plan.connections)
            return await cost(self._plan, load, self._worker, proxies.of(peer), run)
        except FleetFailedError as failure:
            return Run(run.case, run.peer, run.block, run.order, fault=str(failure))


async def run_plan(plan: Plan, folder: Path, session: Session, runs: list[Run]) -> None:
    """Run the whole plan, append each run to `runs` and show it. Raises `FleetFailedError` if the worker fails."""
    ports = tuple(free_ports(WORKER_PORTS))
    worker = Site(ports[0], ports, folder_in(folder, "worker"))
    argv = peers.worker_argv(worker)
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
                        run = Run(plan.case.name, peer.name, block, order)
                        runs.append(run := await environment.measured(peer, proxies, run))
                        session.run_ended(name, in_words(run, plan.case.kind), run.fault)
