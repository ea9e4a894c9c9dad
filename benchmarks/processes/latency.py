"""Latency that least-in-flight loses when its in-flight counts are spread over several balancer processes.

All setups use the same workers at a load that does not saturate a process, so only the counts known at pick time
differ. The reference is one process with half of the workers and half of the load: each of two processes handles as
much, but must also count what the other has sent.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from benchmarks.harness.open_load import OpenLoad, run_open_load
from experiments.errors import FleetFailedError

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
