"""p99 of latency at half of the slowest proxy's capacity, at the same rate for all proxies, in an open loop.

Latency counts from the scheduled instant, so it includes the generator's lag, other processes on the cores, and a
saturated generator core. A run in which one of these is large is repeated, then void. With two cores the generator has
one to itself, because a worker on the same core makes it late; the worker shares the proxy's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.cost.plan import CostPlan, CostRun
from benchmarks.harness.closed_load import Load
from benchmarks.harness.cpu_reading import CpuReading
from benchmarks.harness.open_load import LAG_PART, OpenLoad, Report, run_open_load
from benchmarks.harness.peer_files import Site
from benchmarks.harness.peer_processes import RunningPeer
from benchmarks.harness.peers import Peer
from benchmarks.harness.serving import serving
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time
from experiments.platform.processes import Child

PART = 0.5
"""Offered rate as a fraction of the slowest proxy's capacity."""

TAKEN_PART = 0.2
"""Limit on the share of the cores used by other processes: they cause tail latency."""

BUSY_PART = 0.85
"""Limit on the utilisation of the generator's core: beyond it requests wait for the generator."""

FULL_PART = 0.9
"""Least utilisation of its core at a proxy's capacity; below, something else was the limit."""

ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Capacity:
    """Closed-loop requests per second, and the utilisation of the proxy's core by the benchmark."""

    rate: float
    used: float


class Tail:
    """Finds the offered rate, then measures at it."""

    def __init__(self, plan: CostPlan, load: Load, worker: Child) -> None:
        self._plan = plan
        self._load = load
        self._worker = worker
        self._place = partial(cpu_time.pinned_to, plan.rest_core)
        self.rate = 0.0

    async def find_rate(self, sites: Sequence[tuple[Peer, Site]]) -> str:
        """Set `rate` from the capacity of the slowest peer; returns a description. Raises `FleetFailedError`."""
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
        """CPU seconds on the proxy's core used by the benchmark."""
        there = [proxy, self._worker] if self._plan.worker_core == self._plan.proxy_core else [proxy]
        return sum(cpu_time.cpu_of(child.pid).total for child in there)

    async def measured(self, proxy: RunningPeer, run: CostRun) -> CostRun:
        """Measure one run, with the same arrivals for every peer of the block. Raises `FleetFailedError`."""
        await self._load.run(proxy.port, self._plan.warm_up, self._place)
        for _ in range(ATTEMPTS):
            run = await self._attempted(proxy, run)
            if not run.void:
                break
        return run

    async def _attempted(self, proxy: RunningPeer, run: CostRun) -> CostRun:
        plan = self._plan
        seed = plan.seed + run.block
        load = OpenLoad(
            proxy.port, plan.case.path, self.rate, plan.seconds, plan.connections, seed, plan.is_load_alone
        )
        try:
            before = CpuReading.now(proxy.child, self._worker, plan.cores)
            report = await run_open_load(load, self._place)
            spent = CpuReading.now(proxy.child, self._worker, plan.cores).since(before)
        except OSError:
            raise proxy.died() from None
        return judged(run, report, self.rate, spent.taken)


def judged(run: CostRun, report: Report, rate: float, taken: float = 0.0) -> CostRun:
    """The run with the report's figures; `taken` is the share of the cores used by others."""
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
    """Failed requests by kind as text; empty if none failed."""
    if not report.failed:
        return ""
    kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.failures.items())
    return f"{report.failed} requests failed" + (f" ({kinds})" if kinds else "")


def doubt(report: Report, taken: float) -> str:
    """Reason why a run is void; empty if it is usable."""
    if taken > TAKEN_PART:
        return f"other processes took {taken:.0%} of the cores"
    if report.busy > BUSY_PART:
        return f"the generator's core was {report.busy:.0%} in use, at most {BUSY_PART:.0%} is allowed"
    if report.lag <= LAG_PART * report.p99:  # false if one of them is nan
        return ""
    return f"the generator was {report.lag:.2f} ms late itself, of {report.p99:.2f} ms"


def capacities_in_words(capacities: dict[str, Capacity], rate: float) -> str:
    found = ", ".join(f"{name} {one.rate:.0f}/s" for name, one in capacities.items())
    slowest = min(capacities.values(), key=lambda one: one.rate, default=Capacity(0.0, 1.0))
    doubt = (
        ""
        if slowest.used >= FULL_PART
        else f" (the slowest used {slowest.used:.0%} of its core: the load or other processes limited it)"
    )
    return f"capacity: {found}{doubt}; offered to each: {rate:.0f}/s"
