"""Run one proxy in one storm: fresh workers, a fresh proxy, the load, and the scheduled faults.

All proxies of a round get the same faults and requests; rounds differ by their seed. Only processes started here are
stopped here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.cost.cases import Case
from benchmarks.cost.disturbance import Spans, disturbances, widened
from benchmarks.cost.load import report_of, started
from benchmarks.cost.peers import Peer, Site
from benchmarks.cost.serving import folder_in, serving
from benchmarks.slow_clients.runs import allow_descriptors
from benchmarks.storm.crew import Executions, WorkerGroup
from benchmarks.storm.load import TIMEOUT, WARM_UP, Account
from benchmarks.storm.plan import Episode, Pace, schedule
from benchmarks.storm.setups import CHECK_PATH
from experiments import cpu_time
from experiments.errors import FleetFailedError
from experiments.ports import free_ports
from experiments.processes import program

CONNECTIONS = 512
"""More than ever wait at once: at 500 requests per second, with two of six workers stopped for 2.5 s."""

CHECK = Case("check", "whether it forwards", path=CHECK_PATH)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: proxies, schedule, rounds and core assignment."""

    peers: tuple[Peer, ...]
    pace: Pace
    rounds: int
    seed: int
    proxy_core: int
    rest_core: int
    fresh: float = 0.0
    """Share of requests after which the client reconnects."""

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


def order_of(plan: Plan) -> list[list[Peer]]:
    """Shuffled order of the proxies in each round."""
    rng = Random(plan.seed)
    return [rng.sample(plan.peers, len(plan.peers)) for _ in range(plan.rounds)]


async def run_plan(plan: Plan, folder: Path, told: Callable[[Storm], None]) -> None:
    """Run the whole plan and pass each result to `told`."""
    allow_descriptors()
    for number, peers in enumerate(order_of(plan)):
        for order, peer in enumerate(peers):
            own = folder_in(folder, f"run-{number}-{order}")
            try:
                told(await run_storm(plan, peer, number, own))
            except FleetFailedError as failure:
                told(Storm(peer.name, number, fault=str(failure)))


async def run_storm(plan: Plan, peer: Peer, number: int, folder: Path) -> Storm:
    """One proxy in one storm. Raises `FleetFailedError`."""
    seed = plan.seed + number
    async with WorkerGroup(folder, plan.rest_core, plan.looks_well) as crew:
        site = Site(next(free_ports(1)), crew.ports, folder)
        async with serving(peer.name, peer.argv(site), site.port, CHECK, plan.proxy_core) as child:
            file = folder / "account.npz"
            cores = sorted({plan.proxy_core, plan.rest_core})
            async with (
                disturbances(cores) as taken,
                loading(plan.pace, file, site.port, seed, plan.fresh, plan.rest_core) as zero,
            ):
                await crew.start_replacements(episodes := schedule(plan.pace, seed), zero)
                before = reading(plan)
                episodes = await inject_all(crew, episodes, zero)
            busy = in_use(before, reading(plan))
            fault = "" if child.is_running else f"{peer.name} died{child.tail}"
        return Storm(
            peer.name,
            number,
            tuple(episodes),
            Account.load(file),
            crew.executions(),
            busy,
            widened(taken, zero),
            fault,
        )


def reading(plan: Plan) -> tuple[float, float, float]:
    """Clock, and busy seconds of both cores."""
    unit, others = (cpu_time.busy_seconds(core) for core in (plan.proxy_core, plan.rest_core))
    return time.monotonic(), unit, others


def in_use(before: tuple[float, float, float], now: tuple[float, float, float]) -> tuple[float, float]:
    """Utilisation of both cores between two readings."""
    seconds, unit, others = (later - earlier for earlier, later in zip(before, now, strict=True))
    return unit / seconds, others / seconds


async def inject_all(crew: WorkerGroup, episodes: list[Episode], zero: float) -> list[Episode]:
    """Inject the faults in order; returns them with their actual times. Raises `FleetFailedError`."""
    found = []
    for episode in episodes:
        try:
            at, until = await crew.inject(episode, zero)
        except (OSError, TimeoutError) as error:
            raise FleetFailedError(f"a worker does not obey: {error}") from None
        found.append(replace(episode, at=at, until=until))
    return found


@asynccontextmanager
async def loading(
    pace: Pace, file: Path, port: int, seed: int, fresh: float, core: int
) -> AsyncIterator[float]:
    """Run the load as a process; yields the instant of its zero, waits on exit. Raises `FleetFailedError`."""
    words = (file, port, pace.rate, pace.seconds, pace.posts, seed, CONNECTIONS, fresh)
    argv = [*program("benchmarks.storm.load"), *map(str, words)]
    async with started(argv, partial(cpu_time.pinned_to, core)) as process:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode(errors="replace")
        try:
            zero = float(line)
        except ValueError:
            raise FleetFailedError(f"the load did not start: {line.strip()}") from None
        yield zero
        left = zero + pace.seconds - time.monotonic()
        said = await report_of(process, max(0.0, left) + TIMEOUT + WARM_UP)
    if process.returncode:
        raise FleetFailedError(f"the load failed: {said.strip()[-300:]}")
