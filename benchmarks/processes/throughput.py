"""How many requests a unit of some processes answers when each of them has a core for itself.

Rule of this file: nobody is pinned, so processes that share memory pay for it as they would on an operator's machine.

On two cores the load needs some of what is measured. So there are two ways to ask. *Handshakes*: as many new HTTPS
connections as there can be, with a key that costs the unit thirty times what it costs its client: the client allows it,
and what is answered is the throughput. *Requests*: small GETs on kept connections, so many per process that none is
busy, and the processor time that they take; with a core for each process a unit answers as many per second as its
busiest process has answered per second of its own time. Not at full load: with the load on the same cores, two
processes would be less busy than one, and who is less busy does less at a time.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass

from benchmarks.cost import certificates
from benchmarks.cost.cases import CASES
from benchmarks.cost.load import Outcome, report_of, started
from benchmarks.cost.offer import made
from benchmarks.cost.open_load import WARM_UP, Offer
from experiments import cpu_time
from experiments.errors import FleetFailedError
from experiments.processes import Child

CASE = CASES["get"]
CLIENTS = 8
MADE = re.compile(r"^(\d+) connections in \d+ real seconds", re.MULTILINE)

RATE = 8000.0
"""Requests per second for each process: a third of what a core answers, or a tenth, as machines go."""


@dataclass(frozen=True, slots=True)
class Burst:
    """One unit under load. `unit_cores` and `client_cores` were in use, on average."""

    part: str
    processes: int
    block: int
    rate: float = 0.0
    """Requests per second that were answered."""

    ceiling: float = 0.0
    """Requests per second of processor time of the busiest process."""

    busiest: float = 0.0
    """The part of the unit's processor time that the busiest process used: a half, of two that share evenly."""

    unit_cores: float = 0.0
    client_cores: float = 0.0
    fault: str = ""


Asked = Callable[[int, float, int], Awaitable[Outcome]]
"""Loads a port for some seconds, for a unit of so many processes."""


async def handshakes(port: int, seconds: float, processes: int) -> Outcome:
    """New connections over TLS, none resumed, by clients of one each. Raises FleetFailedError."""
    timing = ["-time", str(max(1, round(seconds)))]
    argv = ["openssl", "s_time", "-connect", f"127.0.0.1:{port}", "-new", "-www", CASE.path, *timing]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(started(argv, nullcontext)) for _ in range(CLIENTS)]
        reports = await asyncio.gather(*(report_of(client, seconds) for client in clients))
    made_by_each = [int(found[1]) if (found := MADE.search(report)) else 0 for report in reports]
    lacking = f"{made_by_each.count(0)} of {CLIENTS} clients made no connection" if 0 in made_by_each else ""
    if lacking:
        raise FleetFailedError(f"{lacking}: {reports[made_by_each.index(0)].strip()[-200:]}")
    return Outcome(sum(made_by_each), sum(made_by_each) / max(1, round(seconds)))


async def requests(port: int, seconds: float, processes: int) -> Outcome:
    """As many requests for each process. Raises FleetFailedError."""
    report = await made(
        Offer(port, CASE.path, RATE * processes, seconds, CASE.connections, seed=1), nullcontext
    )
    answered = round(report.requests * (1 + WARM_UP / seconds))  # what came first took its time, too
    return Outcome(answered, RATE * processes, bad_status=report.failed)


HANDSHAKES, REQUESTS = "handshakes", "requests"
PARTS: dict[str, Asked] = {HANDSHAKES: handshakes, REQUESTS: requests}


def absence(part: str) -> str:
    """Why this cannot be asked here; empty when it can."""
    return certificates.absence() if part == HANDSHAKES else ""


async def burst(unit: Child, port: int, worker: Child, seconds: float, base: Burst) -> Burst:
    """Measure; whatever fails is the run's fault."""
    ask = PARTS[base.part]
    try:
        before, clients, began_at = cpu_time.cpu_of_each(unit.pid), _clients(worker), time.monotonic()
        outcome = await ask(port, seconds, base.processes)
        lasted = time.monotonic() - began_at
        after, clients = cpu_time.cpu_of_each(unit.pid), _clients(worker) - clients
    except (FleetFailedError, OSError) as failure:
        return Burst(base.part, base.processes, base.block, fault=str(failure))
    if fault := outcome.fault or ("" if before.keys() == after.keys() else "a process of the unit has died"):
        return Burst(base.part, base.processes, base.block, fault=fault)
    spent = sorted(after[pid].total - before[pid].total for pid in after)
    return Burst(
        base.part,
        base.processes,
        base.block,
        rate=outcome.rate,
        ceiling=outcome.requests / spent[-1],
        busiest=spent[-1] / sum(spent),
        unit_cores=sum(spent) / lasted,
        client_cores=clients / lasted,
    )


def _clients(worker: Child) -> float:
    """Seconds that the worker and all loads so far have used."""
    return cpu_time.cpu_of(worker.pid).total + cpu_time.cpu_of_ended_children()
