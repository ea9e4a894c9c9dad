"""Normal traffic beside slow clients, and without: two units side by side, and the load on one or the other.

Rule of this file: only what is started here is ended here. For each crowd a unit stands behind it and another has
nobody; the load goes to them in turns of a second or so, in an order of the seed, and figures are compared within a
round. While a turn is quiet the crowd is paused, so that it takes nothing from the core that all of them share.
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

from benchmarks.cost.cases import CASES
from benchmarks.cost.offer import made
from benchmarks.cost.open_load import Offer, Report
from benchmarks.cost.peers import Peer, Site
from benchmarks.cost.runs import WORKERS
from benchmarks.cost.serving import folder_in, serving
from benchmarks.cost.units import Unit
from experiments import cpu_time, processes
from experiments.errors import FleetFailedError
from experiments.ports import free_ports
from experiments.processes import Child, program

QUIET, AGAIN = "quiet", "quiet again"
CROWDS = ("head", "body", "read", "mixed")
KINDS = (QUIET, AGAIN, *CROWDS)
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
    crowds: tuple[str, ...] = CROWDS

    @property
    def is_load_alone(self) -> bool:
        """Whether the generator has a core for itself: beside a worker or a crowd it is late by milliseconds."""
        return self.proxy_core != self.load_core


@dataclass(frozen=True, slots=True)
class Run:
    """One turn of the load: `kind` is quiet, or the crowd beside which it was. Latencies and `lag` (p99 of the
    generator's own) in seconds, memory in bytes."""

    peer: str
    kind: str
    round: int
    crowd: str = ""
    """Before whom the other unit stood, where this one is quiet: rounds are those of a crowd."""

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


def order_of(plan: Plan) -> list[tuple[Peer, str, list[list[str]]]]:
    """Each unit with each crowd, and the kinds of its turns by round."""
    rng = Random(plan.seed)
    pairs = [(peer, crowd) for peer in plan.peers for crowd in plan.crowds]
    return [
        (peer, crowd, [rng.sample((QUIET, AGAIN, crowd), 3) for _ in range(plan.rounds)])
        for peer, crowd in rng.sample(pairs, len(pairs))
    ]


async def carry_out(plan: Plan, folder: Path, told: Callable[[Run], None]) -> None:
    """Do all runs, and tell each as soon as it has ended. Raises FleetFailedError without a worker."""
    allow_descriptors()
    ports = tuple(free_ports(WORKERS))
    # Not nginx: it would answer a request whose body is still coming, and a slow body would soon be no more.
    worker = [*program("benchmarks.cost.worker"), *map(str, ports)]
    async with serving("worker", worker, ports[0], CASES["get"], plan.proxy_core):
        for number, (peer, crowd, rounds) in enumerate(order_of(plan)):
            calm, beside = (
                Site(
                    next(free_ports(1)),
                    ports,
                    folder_in(folder, f"{number}-{name}"),
                    head_timeout=HEAD_TIMEOUT,
                )
                for name in ("calm", "beside")
            )
            try:
                async with pair(plan, peer, crowd, calm, beside) as units:
                    for turn, kinds in enumerate(rounds):
                        for kind in kinds:
                            told(await units.turn(kind, turn))
            except FleetFailedError as failure:
                told(Run(peer.name, crowd, 0, crowd, fault=str(failure)))


def allow_descriptors() -> None:
    """As many as this user may have: a thousand clients need a descriptor each, on both sides."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Pair:
    """Two living units of a peer, one of them before a crowd that is paused."""

    def __init__(self, plan: Plan, crowd: str, calm: Unit, beside: Unit, slow: Child) -> None:
        self.endings: dict[str, int] = {}
        self._plan = plan
        self._crowd = crowd
        self._calm = calm
        self._beside = beside
        self._slow = slow

    async def turn(self, kind: str, number: int) -> Run:
        """The load on one of them. Raises FleetFailedError."""
        if kind != self._crowd:
            return await self._measured(self._calm, kind, number)
        self._slow.resume()
        try:
            await asyncio.sleep(self._plan.pace)  # until each of them has moved
            return await self._measured(self._beside, kind, number)
        finally:
            self._slow.pause()

    async def _measured(self, unit: Unit, kind: str, number: int) -> Run:
        try:
            before, began_at = cpu_time.cpu_of(unit.child.pid).total, time.monotonic()
            report = await load(self._plan, unit.port, number)
            cpu = (cpu_time.cpu_of(unit.child.pid).total - before) / (time.monotonic() - began_at)
        except OSError:
            raise unit.died() from None
        return Run(
            unit.child.name,
            kind,
            number,
            self._crowd,
            requests=report.requests,
            ok=report.requests - report.failed,
            p50=report.p50 / 1e3,
            p99=report.p99 / 1e3,
            lag=report.lag / 1e3,
            cpu=cpu,
            memory=memory_of(unit.child.pid),
            endings=self.endings
            if kind == self._crowd and not number
            else {},  # known when the crowd has ended
        )


@asynccontextmanager
async def pair(plan: Plan, peer: Peer, crowd: str, calm: Site, beside: Site) -> AsyncIterator[Pair]:
    """Both units and the crowd, until the block is left. Raises FleetFailedError."""
    async with (
        serving(peer.name, peer.argv(calm), calm.port, CASES["get"], plan.proxy_core) as quiet,
        serving(peer.name, peer.argv(beside), beside.port, CASES["get"], plan.proxy_core) as other,
        crowding(plan, crowd, beside) as (slow, endings),
    ):
        units = Pair(plan, crowd, Unit(quiet, calm.port), Unit(other, beside.port), slow)
        units.endings = endings
        yield units


async def load(plan: Plan, port: int, number: int) -> Report:
    """Normal traffic, open loop; the same arrivals for all runs of a round."""
    offer = Offer(port, "/", plan.rate, plan.seconds, CONNECTIONS, plan.seed + number, plan.is_load_alone)
    return await made(offer, partial(cpu_time.pinned_to, plan.load_core))


@asynccontextmanager
async def crowding(plan: Plan, kind: str, site: Site) -> AsyncIterator[tuple[Child, dict[str, int]]]:
    """A crowd before `site`, paused, and how its connections ended, which is known when the block is left."""
    endings: dict[str, int] = {}
    report = site.folder / "crowd.json"
    words = [str(site.port), kind, str(plan.clients), str(plan.pace), str(report)]
    with cpu_time.pinned_to(plan.proxy_core):
        child = await processes.start("crowd", [*program("benchmarks.slow_clients.crowd"), *words])
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
    """Bytes in memory of a process and all that descend from it, pages that they share counted for each."""
    page = os.sysconf("SC_PAGE_SIZE")
    statm = [Path(f"/proc/{one}/statm") for one in (pid, *cpu_time.descendants(pid))]
    return sum(int(path.read_text(encoding="ascii").split()[1]) * page for path in statm if path.exists())
