"""Throughput of a balancer of several processes when each has a core of its own.

On two cores the load needs some of what is measured, so there are two methods. *Handshakes*: as many new HTTPS
connections as possible, with a key that costs the server thirty times what it costs the client; the rate answered is
the throughput. *Requests*: small GETs on kept connections at a fixed rate per process that saturates none, and the CPU
time that they take; with a core for each process, the balancer answers as many per second as its busiest process
answers per second of its own CPU time. Not at full load: with the load on the same cores, two processes would be less
busy than one, and a less busy process handles smaller batches.

No process is pinned, so that the cost of shared memory is the same as in production.

*Latency*, that least-in-flight loses when its counts are spread over processes: all setups use the same workers at a
load that does not saturate a process, so only the counts known at pick time differ. The reference is one process with
half of the workers and half of the load: each of two processes handles as much, but must also count what the other has
sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace

from benchmarks.harness import certificates
from benchmarks.harness.cases import CASES
from benchmarks.harness.closed_load import LoadOutcome
from benchmarks.harness.cpu_reading import CpuReading
from benchmarks.harness.load_process import report_of, started
from benchmarks.harness.open_load import WARM_UP, OpenLoad, run_open_load
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time
from experiments.platform.processes import Child

CASE = CASES["get"]
CLIENTS = 8
MADE = re.compile(r"^(\d+) connections in \d+ real seconds", re.MULTILINE)

RATE = 8000.0
"""Requests per second for each process: a third to a tenth of the capacity of a core, depending on the machine."""


@dataclass(frozen=True, slots=True)
class ThroughputRun:
    """One run. `balancer_cores` (balancer) and `client_cores` (load and worker) are mean cores in use."""

    part: str
    processes: int
    block: int
    rate: float = 0.0
    """Requests per second answered."""

    ceiling: float = 0.0
    """Requests per CPU second of the busiest process."""

    busiest: float = 0.0
    """Share of the balancer's CPU time used by the busiest process: 0.5 for two processes that share evenly."""

    balancer_cores: float = 0.0
    client_cores: float = 0.0
    fault: str = ""


LoadOfPart = Callable[[int, float, int], Awaitable[LoadOutcome]]
"""Load function: port, seconds, number of balancer processes."""


async def handshakes(port: int, seconds: float, processes: int) -> LoadOutcome:
    """New TLS connections without resumption, from `CLIENTS` parallel clients. Raises `FleetFailedError`."""
    timing = ["-time", str(max(1, round(seconds)))]
    argv = ["openssl", "s_time", "-connect", f"127.0.0.1:{port}", "-new", "-www", CASE.path, *timing]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(started(argv, nullcontext)) for _ in range(CLIENTS)]
        reports = await asyncio.gather(*(report_of(client, seconds) for client in clients))
    made_by_each = [int(found[1]) if (found := MADE.search(report)) else 0 for report in reports]
    if lacking := made_by_each.count(0):
        report = reports[made_by_each.index(0)].strip()[-200:]
        raise FleetFailedError(f"{lacking} of {CLIENTS} clients made no connection: {report}")
    return LoadOutcome(sum(made_by_each), sum(made_by_each) / max(1, round(seconds)))


async def requests(port: int, seconds: float, processes: int) -> LoadOutcome:
    """Open-loop GETs at `RATE` per process. Raises `FleetFailedError`."""
    report = await run_open_load(
        OpenLoad(port, CASE.path, RATE * processes, seconds, CASE.connections, seed=1), nullcontext
    )
    answered = round(report.requests * (1 + WARM_UP / seconds))  # the warm-up took CPU time too
    return LoadOutcome(answered, RATE * processes, bad_status=report.failed)


HANDSHAKES, REQUESTS = "handshakes", "requests"
PARTS: dict[str, LoadOfPart] = {HANDSHAKES: handshakes, REQUESTS: requests}


def absence(part: str) -> str:
    """Reason why this part cannot be measured here; empty if it can."""
    return certificates.absence() if part == HANDSHAKES else ""


async def burst(proxy: Child, port: int, worker: Child, seconds: float, base: ThroughputRun) -> ThroughputRun:
    """Run one part; a failure is recorded as the run's fault."""
    try:
        each_before, before = cpu_time.cpu_of_each(proxy.pid), CpuReading.now(proxy, worker)
        outcome = await PARTS[base.part](port, seconds, base.processes)
        each, used = cpu_time.cpu_of_each(proxy.pid), CpuReading.now(proxy, worker).since(before)
    except (FleetFailedError, OSError) as failure:
        return replace(base, fault=str(failure))
    fault = outcome.fault or ("" if each_before.keys() == each.keys() else "a process of the balancer died")
    if fault:
        return replace(base, fault=fault)
    spent = sorted(each[pid].total - each_before[pid].total for pid in each)
    return replace(
        base,
        rate=outcome.rate,
        ceiling=outcome.requests / spent[-1],
        busiest=spent[-1] / sum(spent),
        balancer_cores=sum(spent) / used.at,
        client_cores=used.rest / used.at,
    )


PATH = "/work"
SERVICE = 0.020
"""Seconds, exponential: the service time distribution for which queueing theory has closed forms."""

UTILISATION = 0.7
WORKERS = 8
"""Workers for each process, with one slot each."""

CONNECTIONS = 128


@dataclass(frozen=True, slots=True)
class BalancerSetup:
    """A compared setup: a balancer with `processes` processes in front of `workers` workers."""

    name: str
    processes: int
    workers: int

    @property
    def rate(self) -> float:
        """Offered rate in requests per second, at the same utilisation in every setup."""
        return UTILISATION * self.workers / SERVICE


HALF = BalancerSetup("one process, half of all", 1, WORKERS)
ONE = BalancerSetup("one process, all", 1, 2 * WORKERS)
TWO = BalancerSetup("two processes, all", 2, 2 * WORKERS)
SETUPS = (HALF, ONE, TWO)


@dataclass(frozen=True, slots=True)
class LatencyRun:
    """One run of a setup; latencies in milliseconds from the scheduled time."""

    setup: str
    block: int
    requests: int = 0
    p50: float = 0.0
    p99: float = 0.0
    lag: float = 0.0
    """The generator's own lag, p99, in milliseconds."""

    fault: str = ""


async def stretch(setup: BalancerSetup, block: int, port: int, seconds: float, seed: int) -> LatencyRun:
    """Run the load against one setup; a failure is recorded as the run's fault."""
    open_load = OpenLoad(port, PATH, setup.rate, seconds, CONNECTIONS, seed + block)
    try:
        report = await run_open_load(open_load, nullcontext)
    except FleetFailedError as failure:
        return LatencyRun(setup.name, block, fault=str(failure))
    fault = f"{report.failed} of {report.requests} requests failed" if report.failed else ""
    return LatencyRun(setup.name, block, report.requests, report.p50, report.p99, report.lag, fault)
