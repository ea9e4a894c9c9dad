"""The 99th percentile of latency at half of the capacity, the same rate for everybody, in an open loop.

Rule of this file: latency counts from the scheduled instant. The generator's own lag is part of it, and so is what
other processes do to the cores, and a core on which the generator finds no room. A run in which one of these is large
says nothing of the peer: it is repeated, and then void. Where there are two cores the generator has one for itself, for
a worker on the same core makes it late; the worker shares the proxy's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.cost.cost import Reading
from benchmarks.cost.load import Load
from benchmarks.cost.offer import made
from benchmarks.cost.open_load import Offer, Report
from benchmarks.cost.peers import Peer, Site
from benchmarks.cost.plan import Plan, Run
from benchmarks.cost.serving import serving
from benchmarks.cost.units import Unit
from experiments import cpu_time
from experiments.errors import FleetFailedError
from experiments.processes import Child

PART = 0.5
"""Of the capacity of the slowest."""

LAG_PART = 0.5
"""Of a run's p99 that the generator's lag may be, at its own 99th percentile."""

TAKEN_PART = 0.2
"""Of the cores that others may have had: a tail is made by whoever comes in between."""

BUSY_PART = 0.85
"""Of the generator's core that may be in use: beyond it requests wait for the generator."""

FULL_PART = 0.9
"""Of its core that is used at a proxy's capacity, at least; with less, something else was the limit."""

ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests per second in a closed loop, and the part of the proxy's core that was used for them by ours."""

    rate: float
    used: float


class Tail:
    """Finds the rate, then measures at it."""

    def __init__(self, plan: Plan, load: Load, worker: Child) -> None:
        self._plan = plan
        self._load = load
        self._worker = worker
        self._place = partial(cpu_time.pinned_to, plan.rest_core)
        self.rate = 0.0

    async def find_rate(self, sites: Sequence[tuple[Peer, Site]]) -> str:
        """Half of what the slowest can do; returns what was found, in words. Raises FleetFailedError."""
        capacities = {peer.name: await self._capacity(peer, site) for peer, site in sites}
        self.rate = PART * min((found.rate for found in capacities.values()), default=0.0)
        return capacities_in_words(capacities, self.rate)

    async def _capacity(self, peer: Peer, site: Site) -> Capacity:
        plan = self._plan
        async with serving(peer.name, peer.argv(site), site.port, plan.case, plan.proxy_core) as child:
            await self._load.run(site.port, plan.warm_up, self._place)
            spent, began_at = self._spent(child), time.monotonic()
            outcome = await self._load.run(site.port, plan.seconds, self._place)
            used = (self._spent(child) - spent) / (time.monotonic() - began_at)
        if outcome.fault:
            raise FleetFailedError(f"the capacity of {peer.name} is not known: {outcome.fault}")
        return Capacity(outcome.rate, used)

    def _spent(self, proxy: Child) -> float:
        """Seconds of processor time on the proxy's core, as far as they are ours."""
        there = [proxy, self._worker] if self._plan.worker_core == self._plan.proxy_core else [proxy]
        return sum(cpu_time.cpu_of(child.pid).total for child in there)

    async def measured(self, unit: Unit, run: Run) -> Run:
        """One run, the same instants for every peer of the block. Raises FleetFailedError."""
        await self._load.run(unit.port, self._plan.warm_up, self._place)
        for _ in range(ATTEMPTS):
            run = await self._attempted(unit, run)
            if not run.void:
                break
        return run

    async def _attempted(self, unit: Unit, run: Run) -> Run:
        try:
            before = Reading.now(unit.child, self._worker, self._plan)
            report = await self._open(unit.port, self._plan.seed + run.block)
            after = Reading.now(unit.child, self._worker, self._plan)
        except OSError:
            raise unit.died() from None
        return judged(run, report, self.rate, after.taken_since(before))

    async def _open(self, port: int, seed: int) -> Report:
        plan = self._plan
        offer = Offer(
            port, plan.case.path, self.rate, plan.seconds, plan.connections, seed, plan.is_load_alone
        )
        return await made(offer, self._place)


def judged(run: Run, report: Report, rate: float, taken: float = 0.0) -> Run:
    """The run as the report has it; `taken` is the part of the cores that others had."""
    return replace(
        run,
        figure=report.p99,
        requests=report.requests,
        rate=rate,
        taken=taken,
        lag=report.lag,
        busy=report.busy,
        load_cpu=report.cpu,
        waited=report.waited,
        fault=fault_in_words(report),
        void=doubt(report, taken),
    )


def fault_in_words(report: Report) -> str:
    """Which requests failed, and how; empty when none did."""
    if not report.failed:
        return ""
    kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.failures.items())
    return f"{report.failed} requests failed" + (f" ({kinds})" if kinds else "")


def doubt(report: Report, taken: float) -> str:
    """Why a run says nothing of the peer; empty when it does."""
    if taken > TAKEN_PART:
        return f"others took {taken:.0%} of the cores"
    if report.busy > BUSY_PART:
        return f"the generator's core was {report.busy:.0%} in use, which leaves it no room"
    if report.lag <= LAG_PART * report.p99:  # not where one of them is nan
        return ""
    return f"the generator was {report.lag:.2f} ms late itself, of {report.p99:.2f} ms"


def capacities_in_words(capacities: dict[str, Capacity], rate: float) -> str:
    found = ", ".join(f"{name} {one.rate:.0f}/s" for name, one in capacities.items())
    slowest = min(capacities.values(), key=lambda one: one.rate, default=Capacity(0.0, 1.0))
    doubt = (
        ""
        if slowest.used >= FULL_PART
        else f" (the slowest used {slowest.used:.0%} of its core: it was held up, by the load or by others)"
    )
    return f"capacity: {found}{doubt}; offered to each: {rate:.0f}/s"
