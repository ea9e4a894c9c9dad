"""How many requests a unit of some processes answers when each of them has a core for itself.

Rule of this file: nobody is pinned, so processes that share memory pay for it as they would on an operator's machine.

A closed loop on two cores cannot show twice the throughput, because the load and the worker need some of them. What is
measured beside the rate is who was the bottleneck: with a core for each process a unit answers as many requests per
second as its busiest process has answered per second of its processor time.
"""

from __future__ import annotations

import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from experiments.bench import cpu_time
from experiments.bench.cases import CASES
from experiments.bench.load import Load
from experiments.errors import FleetFailedError
from experiments.processes import Child

CASE = CASES["get"]


@dataclass(frozen=True, slots=True)
class Burst:
    """One unit under as much load as there is. `unit_cores` and `client_cores` were in use, on average."""

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


async def burst(unit: Child, port: int, worker: Child, seconds: float, base: Burst, folder: Path) -> Burst:
    """Measure; whatever fails is the run's fault."""
    load = Load(CASE, CASE.connections, shutil.which("wrk"), folder)
    try:
        await load.run(port, min(seconds, CASE.warm_up), nullcontext)
        before, clients, began_at = cpu_time.cpu_of_each(unit.pid), _clients(worker), time.monotonic()
        outcome = await load.run(port, seconds, nullcontext)
        lasted = time.monotonic() - began_at
        after, clients = cpu_time.cpu_of_each(unit.pid), _clients(worker) - clients
    except (FleetFailedError, OSError) as failure:
        return Burst(base.processes, base.block, fault=str(failure))
    if fault := outcome.fault or ("" if before.keys() == after.keys() else "a process of the unit has died"):
        return Burst(base.processes, base.block, fault=fault)
    spent = sorted(after[pid].total - before[pid].total for pid in after)
    return Burst(
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
