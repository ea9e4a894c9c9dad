"""What least-in-flight loses when the requests that it counts are spread over processes.

Rule of this file: everybody meets the same workers, at a load that no process feels, so what differs is what is known
when an endpoint is picked. One process before half of the workers and half of the load is the measure: two processes
have as much to do each, and must see what the other has sent.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from benchmarks.cost.offer import made
from benchmarks.cost.open_load import Offer
from experiments.errors import FleetFailedError

PATH = "/work"
SERVICE = 0.020
"""Seconds, exponential: the one service time whose queues are known."""

UTILISATION = 0.7
WORKERS = 8
"""For each process, one slot each."""

CONNECTIONS = 128


@dataclass(frozen=True, slots=True)
class Setup:
    """Who is compared: a unit of so many processes before so many workers."""

    name: str
    processes: int
    workers: int

    @property
    def rate(self) -> float:
        """Requests per second: the same part of what its workers can do for everybody."""
        return UTILISATION * self.workers / SERVICE


HALF = Setup("one process, half of all", 1, WORKERS)
ONE = Setup("one process, all", 1, 2 * WORKERS)
TWO = Setup("two processes, all", 2, 2 * WORKERS)
SETUPS = (HALF, ONE, TWO)


@dataclass(frozen=True, slots=True)
class Stretch:
    """One setup for a while: milliseconds from being due."""

    setup: str
    block: int
    requests: int = 0
    p50: float = 0.0
    p99: float = 0.0
    lag: float = 0.0
    """The generator's own, p99."""

    fault: str = ""


async def stretch(setup: Setup, block: int, port: int, seconds: float, seed: int) -> Stretch:
    """Measure; whatever fails is the run's fault."""
    offer = Offer(port, PATH, setup.rate, seconds, CONNECTIONS, seed + block)
    try:
        report = await made(offer, nullcontext)
    except FleetFailedError as failure:
        return Stretch(setup.name, block, fault=str(failure))
    fault = f"{report.failed} of {report.requests} requests failed" if report.failed else ""
    return Stretch(setup.name, block, report.requests, report.p50, report.p99, report.lag, fault)
