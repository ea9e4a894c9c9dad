"""Normal traffic beside slow clients: a fresh unit for each run, and the same load each time.

Rule of this file: only what is started here is ended here. A round runs every unit with every kind of crowd once, quiet
among them, in an order of the seed; figures are compared within a round.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from experiments import bench_cpu, processes
from experiments.bench_cases import CASES
from experiments.bench_offer import made
from experiments.bench_open import Offer, Report
from experiments.bench_runs import WORKERS
from experiments.bench_serving import folder_in, free_ports, serving
from experiments.errors import FleetFailedError
from experiments.peers import Peer, Site
from experiments.processes import program

QUIET, AGAIN = "quiet", "quiet again"
KINDS = (QUIET, AGAIN, "head", "body", "read", "mixed")
"""Quiet twice: what the second differs from the first by is the noise beside which the others are to be read."""
SETTLED_AFTER = 2.0
"""Seconds from the crowd's last connection to the load: until then the buffers before slow readers are being filled."""

CONNECTIONS = 64
HEAD_TIMEOUT = 2.0
"""Seconds that each unit gives a head, so that a short run sees what becomes of slow ones."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured; `rate` in normal requests per second, `pace` in seconds from slow byte to slow byte."""

    peers: tuple[Peer, ...]
    clients: int
    pace: float
    rate: float
    seconds: float
    rounds: int
    seed: int
    proxy_core: int
    load_core: int
    kinds: tuple[str, ...] = KINDS

    @property
    def is_load_alone(self) -> bool:
        """Whether the generator has a core for itself: beside a worker or a crowd it is late by milliseconds."""
        return self.proxy_core != self.load_core


@dataclass(frozen=True, slots=True)
class Run:
    """One unit beside one crowd. Latencies and `lag` (p99 of the generator's own) in seconds, memory in bytes."""

    peer: str
    kind: str
    round: int
    requests: int = 0
    ok: int = 0
    p50: float = 0.0
    p99: float = 0.0
    lag: float = 0.0
    cpu: float = 0.0
    """Seconds of processor per second."""

    memory: int = 0
    endings: dict[str, int] = field(default_factory=dict)
    fault: str = ""


def order_of(plan: Plan) -> list[list[tuple[Peer, str]]]:
    """The runs of every round, in the order in which they take place."""
    rng = Random(plan.seed)
    pairs = [(peer, kind) for peer in plan.peers for kind in plan.kinds]
    return [rng.sample(pairs, len(pairs)) for _ in range(plan.rounds)]


async def carry_out(plan: Plan, folder: Path, told: Callable[[Run], None]) -> None:
    """Do all runs, and tell each as soon as it has ended. Raises FleetFailedError without a worker."""
    allow_descriptors()
    ports = tuple(free_ports(WORKERS))
    # Not nginx: it would answer a request whose body is still coming, and a slow body would soon be no more.
    worker = [*program("experiments.bench_worker"), *map(str, ports)]
    async with serving("worker", worker, ports[0], CASES["get"], plan.proxy_core):
        for number, pairs in enumerate(order_of(plan)):
            for order, (peer, kind) in enumerate(pairs):
                port, own = next(free_ports(1)), folder_in(folder, f"run-{number}-{order}")
                place = Site(port, ports, own, head_timeout=HEAD_TIMEOUT)
                try:
                    run = await measured(plan, peer, kind, number, place)
                except FleetFailedError as failure:
                    run = Run(peer.name, kind, number, fault=str(failure))
                told(run)


def allow_descriptors() -> None:
    """As many as this user may have: a thousand clients need a descriptor each, on both sides."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def measured(plan: Plan, peer: Peer, kind: str, number: int, site: Site) -> Run:
    """One run with fresh processes. Raises FleetFailedError."""
    endings: dict[str, int] = {}
    async with (
        serving(peer.name, peer.argv(site), site.port, CASES["get"], plan.proxy_core) as child,
        crowding(plan, kind, site, endings),
    ):
        before = bench_cpu.cpu_of(child.pid).total
        began_at = time.monotonic()
        report = await load(plan, site.port, number)
        cpu = (bench_cpu.cpu_of(child.pid).total - before) / (time.monotonic() - began_at)
        memory = memory_of(child.pid)
    return Run(
        peer.name,
        kind,
        number,
        requests=report.requests,
        ok=report.requests - report.failed,
        p50=report.p50 / 1e3,
        p99=report.p99 / 1e3,
        lag=report.lag / 1e3,
        cpu=cpu,
        memory=memory,
        endings=endings,
    )


async def load(plan: Plan, port: int, number: int) -> Report:
    """Normal traffic, open loop; the same arrivals for all runs of a round."""
    offer = Offer(port, "/", plan.rate, plan.seconds, CONNECTIONS, plan.seed + number, plan.is_load_alone)
    return await made(offer, partial(bench_cpu.pinned_to, plan.load_core))


@asynccontextmanager
async def crowding(plan: Plan, kind: str, site: Site, endings: dict[str, int]) -> AsyncIterator[None]:
    """A crowd before `site`, none for quiet; afterwards `endings` says how its connections ended."""
    if kind in (QUIET, AGAIN):
        yield
        return
    report = site.folder / "crowd.json"
    words = [str(site.port), kind, str(plan.clients), str(plan.pace), str(report)]
    with bench_cpu.pinned_to(plan.proxy_core):
        child = await processes.start("crowd", [*program("experiments.slow_crowd"), *words])
    try:
        await child.ready()
        await asyncio.sleep(min(SETTLED_AFTER, plan.seconds))
        yield
    finally:
        await child.stop()
    if report.exists():
        endings.update(json.loads(report.read_text(encoding="utf-8")))


def memory_of(pid: int) -> int:
    """Bytes in memory of a process and all that descend from it, pages that they share counted for each."""
    page = os.sysconf("SC_PAGE_SIZE")
    statm = [Path(f"/proc/{one}/statm") for one in (pid, *bench_cpu.descendants(pid))]
    return sum(int(path.read_text(encoding="ascii").split()[1]) * page for path in statm if path.exists())
