"""Measurements of two balancer processes beside one, when each has a core of its own.

On two cores the load needs some of what is measured, so throughput is measured in two ways. *Handshakes*: as many new
HTTPS connections as possible, with a key that costs the server thirty times what it costs the client; the rate answered
is the throughput. *Requests*: small GETs on kept connections at a fixed rate per process that saturates none, and the
CPU time that they take; with a core for each process, the balancer answers as many per second as its busiest process
answers per second of its own CPU time. Not at full load: with the load on the same cores, two processes would be less
busy than one, and a less busy process handles smaller batches.

*Latency*, that least-in-flight loses when its counts are spread over processes: all setups use the same workers at a
load that does not saturate a process, so only the counts known at pick time differ. The reference is one process with
half of the workers and half of the load: each of two processes handles as much, but must also count what the other has
sent.

No process is pinned, so that the cost of shared memory is the same as in production.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field, replace

from benchmarks.harness import certificates
from benchmarks.harness.cases import CASES
from benchmarks.harness.closed_load import LoadOutcome
from benchmarks.harness.cpu_reading import CpuReading
from benchmarks.harness.load_process import report_of, started
from benchmarks.harness.open_load import WARM_UP, OpenLoad, run_open_load
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time
from experiments.platform.processes import Child

GAIN = 1.8
"""Least throughput of two processes, as a multiple of one."""

MAX_P99 = 1.05
"""Largest p99 ratio to one process that counts as equal: less than twelve blocks can resolve."""

WORKERS = 8
"""Workers for each process whose latency is measured, with one slot each."""

COLUMNS = {
    "rate": ("answered/s", ".0f"),
    "ceiling": ("with a core each/s", ".0f"),
    "busiest": ("busiest", ".0%"),
    "balancer_cores": ("balancer's cores", ".2f"),
    "client_cores": ("load's and worker's", ".2f"),
    "offered": ("offered/s", ".0f"),
    "p50": ("p50 ms", ".1f"),
    "p99": ("p99 ms", ".1f"),
    "lag": ("lag p99 ms", ".2f"),
}
"""Figures of runs, with their column: requests per second answered and per CPU second of the busiest process; its share
of the balancer's CPU time, 0.5 for two that share evenly; mean cores in use by the balancer, and by load and worker;
latencies from the scheduled time, and the generator's own lag.
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """A balancer of so many processes, before so many workers; 0: the usual ones."""

    name: str
    processes: int
    workers: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Setups measured in turns; the last one is judged by `judged`, as a multiple of the first one's."""

    name: str
    words: str
    setups: tuple[Setup, ...]
    figures: tuple[str, ...]
    judged: str
    bound: str
    limit: float
    is_gain: bool = False


ONE, TWO = Setup("one process", 1), Setup("two processes", 2)
HALF_OF_ALL = Setup("one process, half of all", 1, WORKERS)
ONE_OF_ALL = Setup("one process, all", 1, 2 * WORKERS)
TWO_OF_ALL = Setup("two processes, all", 2, 2 * WORKERS)
OF_THROUGHPUT = ("rate", "ceiling", "busiest", "balancer_cores", "client_cores")
GAINED = f"two processes answer ≥ {GAIN:g} × what one does"
HANDSHAKES = Measurement(
    "handshakes",
    "as many new HTTPS connections as possible",
    (ONE, TWO),
    OF_THROUGHPUT,
    "rate",
    GAINED,
    GAIN,
    True,
)
REQUESTS = Measurement(
    "requests",
    "small GETs at a rate per process",
    (ONE, TWO),
    OF_THROUGHPUT,
    "ceiling",
    f"{GAINED}, with a core for each process",
    GAIN,
    is_gain=True,
)
LATENCY = Measurement(
    "latency",
    "least-in-flight, exponential service of 20 ms, 70 % load, open loop",
    (HALF_OF_ALL, ONE_OF_ALL, TWO_OF_ALL),
    ("offered", "p50", "p99", "lag"),
    "p99",
    f"p99 of two processes ≤ {MAX_P99:g} × that of one at equal load per core",
    MAX_P99,
)
MEASUREMENTS = {one.name: one for one in (HANDSHAKES, REQUESTS, LATENCY)}


@dataclass(frozen=True, slots=True)
class ProcessesRun:
    """One run of a setup; `figures` are those of its measurement."""

    measurement: str
    setup: str
    block: int
    figures: dict[str, float] = field(default_factory=dict)
    fault: str = ""


def absence(measurement: Measurement) -> str:
    """Reason why this cannot be measured here; empty if it can."""
    return certificates.absence() if measurement is HANDSHAKES else ""


CASE = CASES["get"]
CLIENTS = 8
MADE = re.compile(r"^(\d+) connections in \d+ real seconds", re.MULTILINE)

RATE = 8000.0
"""Requests per second for each process: a third to a tenth of the capacity of a core, depending on the machine."""


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


LOADS: dict[str, Callable[[int, float, int], Awaitable[LoadOutcome]]] = {
    HANDSHAKES.name: handshakes,
    REQUESTS.name: requests,
}
"""Load of a measurement of throughput: port, seconds, number of balancer processes."""


async def burst(
    proxy: Child, port: int, worker: Child, seconds: float, setup: Setup, run: ProcessesRun
) -> ProcessesRun:
    """Measure throughput once; a failure is recorded as the run's fault."""
    try:
        each_before, before = cpu_time.cpu_of_each(proxy.pid), CpuReading.now(proxy, worker)
        outcome = await LOADS[run.measurement](port, seconds, setup.processes)
        each, used = cpu_time.cpu_of_each(proxy.pid), CpuReading.now(proxy, worker).since(before)
    except (FleetFailedError, OSError) as failure:
        return replace(run, fault=str(failure))
    fault = outcome.fault or ("" if each_before.keys() == each.keys() else "a process of the balancer died")
    if fault:
        return replace(run, fault=fault)
    spent = sorted(each[pid].total - each_before[pid].total for pid in each)
    figures = {
        "rate": outcome.rate,
        "ceiling": outcome.requests / spent[-1],
        "busiest": spent[-1] / sum(spent),
        "balancer_cores": sum(spent) / used.at,
        "client_cores": used.rest / used.at,
    }
    return replace(run, figures=figures)


PATH = "/work"
SERVICE = 0.020
"""Seconds, exponential: the service time distribution for which queueing theory has closed forms."""

UTILISATION = 0.7
CONNECTIONS = 128


def offered_rate(setup: Setup) -> float:
    """Requests per second, at the same utilisation of the workers in every setup."""
    return UTILISATION * setup.workers / SERVICE


async def stretch(port: int, seconds: float, seed: int, setup: Setup, run: ProcessesRun) -> ProcessesRun:
    """Measure latency once; a failure is recorded as the run's fault."""
    rate = offered_rate(setup)
    try:
        report = await run_open_load(
            OpenLoad(port, PATH, rate, seconds, CONNECTIONS, seed + run.block), nullcontext
        )
    except FleetFailedError as failure:
        return replace(run, fault=str(failure))
    fault = f"{report.failed} of {report.requests} requests failed" if report.failed else ""
    figures = {"offered": rate, "p50": report.p50, "p99": report.p99, "lag": report.lag}
    return replace(run, figures=figures, fault=fault)
