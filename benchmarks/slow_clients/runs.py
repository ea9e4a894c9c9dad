"""Normal traffic with and without slow clients: two instances of each proxy, one of them with slow clients connected.

For each kind of slow client, the load alternates between the two instances in short runs, in an order drawn from the
seed; runs are compared within a round. The slow clients are paused (SIGSTOP) during quiet runs, so that they use none
of the core they share with the proxies. Only processes started here are stopped here.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from balancer.control.admin.socket_path import own_directory, socket_name
from benchmarks.harness.cases import CASES
from benchmarks.harness.cpu_reading import CpuReading
from benchmarks.harness.open_load import OpenLoad, Report, run_open_load
from benchmarks.harness.peer_files import Site
from benchmarks.harness.peers import OURS, WORKER_PORTS, Peer
from benchmarks.harness.serving import RunningPeer, folder_in, serving, status_line
from benchmarks.harness.verdicts import shuffled_blocks
from benchmarks.slow_clients.flood_client import FLOODS
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time, processes
from experiments.platform.descriptors import open_files
from experiments.platform.ports import free_ports
from experiments.platform.processes import Child, program

QUIET, CONTROL = "quiet", "quiet again"
SLOW_KINDS = ("head", "body", "read", "mixed")
KINDS = (QUIET, CONTROL, *SLOW_KINDS, *FLOODS)
"""`CONTROL` is an A/A control: its difference from `QUIET` is the noise against which the other kinds are read."""
SETTLED_AFTER = 2.0
"""Seconds from the last slow connection to the load: until then the buffers for slow readers fill."""

CONNECTIONS = 64
FLOODING = 50
"""Clients that flood HTTP/2 connections."""

LOOK_AGAIN = 0.05
MOST_WAIT = 5.0
"""Seconds from a probe to the next one, and up to which an answer is waited for."""

HEAD_TIMEOUT = 2.0
"""Timeout for a request head in seconds, set in each proxy, so that a short run shows how slow heads end."""


@dataclass(frozen=True, slots=True)
class SlowPlan:
    """What is measured; `rate` in normal requests per second, `pace` in seconds between slow bytes."""

    peers: tuple[Peer, ...]
    clients: int
    pace: float
    rate: float
    seconds: float
    rounds: int
    seed: int
    proxy_core: int
    load_core: int
    kinds: tuple[str, ...] = (*SLOW_KINDS, *FLOODS)
    is_http2: bool = False
    """Whether the normal requests, and nothing else, are over HTTP/2; floods are in any case."""

    def kinds_for(self, peer: Peer) -> tuple[str, ...]:
        """Kinds of slow clients before a peer; others are not configured for HTTP/2."""
        is_ours = peer.name.startswith(OURS)
        return tuple(kind for kind in self.kinds if is_ours or kind in SLOW_KINDS)

    @property
    def is_load_alone(self) -> bool:
        """Whether the generator has a core to itself; on a shared one it is late by milliseconds."""
        return self.proxy_core != self.load_core


@dataclass(frozen=True, slots=True)
class SlowRun:
    """Result of one run. `kind` is `QUIET`, `CONTROL` or the kind of slow clients present. Latencies and `lag` (p99 of
    the generator's own lag) in seconds, memory in bytes.
    """

    peer: str
    kind: str
    round: int
    slow_kind: str = ""
    """Kind of slow clients on the other instance during a quiet run; rounds are counted per kind."""

    requests: int = 0
    ok: int = 0
    p50: float = 0.0
    p99: float = 0.0
    lag: float = 0.0
    cpu: float = 0.0
    """CPU seconds per second."""

    memory: int = 0
    probe: float = 0.0
    """Longest time for an answer from `/-/live` or the admin socket, `MOST_WAIT` if there was none; floods only."""

    endings: dict[str, int] = field(default_factory=dict)
    fault: str = ""


def order_of(plan: SlowPlan) -> list[tuple[Peer, str, list[list[str]]]]:
    """Order of the runs: each peer with each kind of slow clients, and the shuffled kinds of its runs in each round."""
    rng = Random(plan.seed)
    (pairs,) = shuffled_blocks([(peer, kind) for peer in plan.peers for kind in plan.kinds_for(peer)], 1, rng)
    return [(peer, kind, shuffled_blocks((QUIET, CONTROL, kind), plan.rounds, rng)) for peer, kind in pairs]


async def run_plan(plan: SlowPlan, folder: Path, observe: Callable[[SlowRun], None]) -> None:
    """Run the whole plan and pass each result to `observe`. Raises `FleetFailedError` if the worker does not start."""
    open_files()
    ports = tuple(free_ports(WORKER_PORTS))
    # Not nginx: it would answer a request whose body is still incomplete, and a slow body would end early.
    worker = [*program("experiments.platform.instant_worker"), *map(str, ports)]
    async with serving("worker", worker, ports[0], CASES["get"], plan.proxy_core):
        for number, (peer, slow_kind, rounds) in enumerate(order_of(plan)):
            sites = [
                Site(next(free_ports(1)), ports, folder_in(folder, f"{number}-{name}"), None, HEAD_TIMEOUT)
                for name in ("calm", "beside")
            ]
            try:
                async with pair(plan, peer, slow_kind, *sites) as proxies:
                    for turn, kinds in enumerate(rounds):
                        for kind in kinds:
                            observe(await proxies.turn(kind, turn))
            except FleetFailedError as failure:
                observe(SlowRun(peer.name, slow_kind, 0, slow_kind, fault=str(failure)))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two running instances of a peer: one alone, one with slow clients that are paused.

    `endings` counts how their connections ended; it is filled when they have ended.
    """

    plan: SlowPlan
    slow_kind: str
    calm: RunningPeer
    beside: RunningPeer
    slow: Child
    endings: dict[str, int]

    async def turn(self, kind: str, number: int) -> SlowRun:
        """Run the load once against the instance that `kind` requires. Raises `FleetFailedError`."""
        if kind != self.slow_kind:
            return await self._measured(self.calm, kind, number)
        self.slow.resume()
        try:
            await asyncio.sleep(self.plan.pace)  # until each slow client has moved once
            return await self._measured(self.beside, kind, number)
        finally:
            self.slow.pause()

    async def _measured(self, proxy: RunningPeer, kind: str, number: int) -> SlowRun:
        try:
            before = CpuReading.now(proxy.child)
            is_flood = self.slow_kind in FLOODS
            async with probing(proxy.port if is_flood else 0) as waits:
                report = await load(self.plan, proxy.port, number, beside_floods=is_flood)
            spent = CpuReading.now(proxy.child).since(before)
        except OSError:
            raise proxy.died() from None
        return SlowRun(
            proxy.child.name,
            kind,
            number,
            self.slow_kind,
            requests=report.requests,
            ok=report.requests - report.failed,
            p50=report.p50 / 1e3,
            p99=report.p99 / 1e3,
            lag=report.lag / 1e3,
            cpu=spent.proxy.total / spent.at,
            memory=memory_of(proxy.child.pid),
            probe=max(waits, default=0.0),
            endings=self.endings if kind == self.slow_kind and not number else {},
        )


@asynccontextmanager
async def probing(port: int) -> AsyncIterator[list[float]]:
    """Ask for liveness again and again, by the port and by the admin socket; yields how long each answer took. With
    port 0, nothing is asked."""
    waits: list[float] = []

    async def probe(path: str | None) -> None:
        while port:
            asked_at = time.monotonic()
            answer = await status_line(port, "/-/live", within=MOST_WAIT, admin_socket=path)
            waits.append(time.monotonic() - asked_at if " 200 " in answer else MOST_WAIT)
            await asyncio.sleep(LOOK_AGAIN)

    admin = str(own_directory() / socket_name(port))
    probes = [asyncio.create_task(probe(path)) for path in (None, admin)]
    try:
        yield waits
    finally:
        for one in probes:
            one.cancel()
        await asyncio.gather(*probes, return_exceptions=True)


@asynccontextmanager
async def pair(plan: SlowPlan, peer: Peer, slow_kind: str, calm: Site, beside: Site) -> AsyncIterator[Pair]:
    """Start both instances and the slow clients; stop them on exit. Raises `FleetFailedError`."""
    async with (
        serving(peer.name, peer.argv(calm), calm.port, CASES["get"], plan.proxy_core) as quiet,
        serving(peer.name, peer.argv(beside), beside.port, CASES["get"], plan.proxy_core) as other,
        slow_clients(plan, slow_kind, beside) as (slow, endings),
    ):
        alone, loaded = RunningPeer(quiet, calm.port), RunningPeer(other, beside.port)
        yield Pair(plan, slow_kind, alone, loaded, slow, endings)


async def load(plan: SlowPlan, port: int, number: int, *, beside_floods: bool) -> Report:
    """Open-loop load of normal requests; all runs of a round have the same arrivals.

    Floods share the generator's core: it leaves them the time that it does not need, and takes the core when it does.
    """
    open_load = OpenLoad(
        port,
        "/",
        plan.rate,
        plan.seconds,
        CONNECTIONS,
        plan.seed + number,
        spins=plan.is_load_alone and not beside_floods,
        is_http2=plan.is_http2,
        preempts=beside_floods and plan.is_load_alone,
    )
    return await run_open_load(open_load, partial(cpu_time.pinned_to, plan.load_core))


@asynccontextmanager
async def slow_clients(plan: SlowPlan, kind: str, site: Site) -> AsyncIterator[tuple[Child, dict[str, int]]]:
    """Start slow clients of `kind`, paused; yields the process and how its connections ended, known on exit.

    Floods are on the load's core: on that of the proxy, the kernel's part of their packets would delay it by
    milliseconds.
    """
    endings: dict[str, int] = {}
    report = site.folder / "slow-clients.json"
    module, amounts = (
        ("flood_client", [FLOODING]) if kind in FLOODS else ("slow_client", [plan.clients, plan.pace])
    )
    words = map(str, (site.port, kind, *amounts, report))
    argv = [*program(f"benchmarks.slow_clients.{module}"), *words]
    with cpu_time.pinned_to(plan.load_core if kind in FLOODS else plan.proxy_core):
        child = await processes.start("slow-clients", argv)
    try:
        await child.ready()
        await asyncio.sleep(SETTLED_AFTER)
        child.pause()
        yield child, endings
    finally:
        await child.stop()
    if report.exists():
        endings.update(json.loads(report.read_text(encoding="utf-8")))


def memory_of(pid: int) -> int:
    """Resident memory of a process and its descendants in bytes; shared pages count once per process."""
    page = os.sysconf("SC_PAGE_SIZE")
    statm = [Path(f"/proc/{one}/statm") for one in (pid, *cpu_time.descendants(pid))]
    return sum(int(path.read_text(encoding="ascii").split()[1]) * page for path in statm if path.exists())
