"""The 99th percentile of latency at half of the capacity, the same rate for everybody, in an open loop.

Rule of this file: latency counts from the scheduled instant. The generator's own lag is part of it, and so is what
other processes do to the cores. A run in which either is large says nothing of the peer: it is repeated, and then void.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from experiments import bench_cpu
from experiments.bench_cost import Reading
from experiments.bench_load import Load, report_of, started
from experiments.bench_open import Report
from experiments.bench_plan import Plan, Run
from experiments.bench_serving import serving
from experiments.errors import FleetFailedError
from experiments.peers import Peer, Site
from experiments.processes import Child, program

PART = 0.5
"""Of the capacity of the slowest."""

LAG_PART = 0.5
"""Of a run's p99 that the generator's lag may be, at its own 99th percentile."""

TAKEN_PART = 0.2
"""Of the cores that others may have had: a tail is made by whoever comes in between."""

ATTEMPTS = 3


class Tail:
    """Finds the rate, then measures at it."""

    def __init__(self, plan: Plan, load: Load, worker: Child) -> None:
        self._plan = plan
        self._load = load
        self._worker = worker
        self._place = partial(bench_cpu.pinned_to, plan.rest_core)
        self.rate = 0.0

    async def find_rate(self, sites: Sequence[tuple[Peer, Site]]) -> str:
        """Half of what the slowest can do; returns what was found, in words. Raises FleetFailedError."""
        capacities = {peer.name: await self._capacity(peer, site) for peer, site in sites}
        self.rate = PART * min(capacities.values(), default=0.0)
        return capacities_in_words(capacities, self.rate)

    async def _capacity(self, peer: Peer, site: Site) -> float:
        """Requests per second in a closed loop."""
        plan = self._plan
        async with serving(peer.name, peer.argv(site), site.port, plan.case, plan.proxy_core):
            await self._load.run(site.port, plan.warm_up, self._place)
            outcome = await self._load.run(site.port, plan.seconds, self._place)
        if outcome.fault:
            raise FleetFailedError(f"the capacity of {peer.name} is not known: {outcome.fault}")
        return outcome.rate

    async def measured(self, peer: Peer, site: Site, run: Run) -> Run:
        """One run with a fresh process, the same instants for every peer of the block. Raises FleetFailedError."""
        plan = self._plan
        async with serving(peer.name, peer.argv(site), site.port, plan.case, plan.proxy_core) as child:
            await self._load.run(site.port, plan.warm_up, self._place)
            for _ in range(ATTEMPTS):
                run = await self._attempted(site.port, child, run)
                if not run.void:
                    break
        return run

    async def _attempted(self, port: int, child: Child, run: Run) -> Run:
        try:
            before = Reading.now(child, self._worker, self._plan)
            report = await self._open(port, self._plan.seed + run.block)
            after = Reading.now(child, self._worker, self._plan)
        except OSError:
            raise FleetFailedError(f"{child.name} died while it was measured{child.tail}") from None
        return judged(run, report, self.rate, after.taken_since(before))

    async def _open(self, port: int, seed: int) -> Report:
        plan = self._plan
        words = (port, plan.case.path, self.rate, plan.seconds, plan.connections, seed)
        async with started([*program("experiments.bench_open"), *map(str, words)], self._place) as process:
            return parsed(await report_of(process, plan.seconds))


def parsed(text: str) -> Report:
    """What the generator printed. Raises FleetFailedError when it is no report."""
    try:
        return Report(**json.loads(text))
    except (ValueError, TypeError):
        raise FleetFailedError(f"the open loop gave no report: {text.strip()[-200:]}") from None


def judged(run: Run, report: Report, rate: float, taken: float = 0.0) -> Run:
    """The run as the report has it; `taken` is the part of the cores that others had."""
    return replace(
        run,
        figure=report.p99,
        requests=report.requests,
        rate=rate,
        taken=taken,
        lag=report.lag,
        fault=f"{report.failed} requests failed" if report.failed else "",
        void=doubt(report, taken),
    )


def doubt(report: Report, taken: float) -> str:
    """Why a run says nothing of the peer; empty when it does."""
    if taken > TAKEN_PART:
        return f"others took {taken:.0%} of the cores"
    if report.lag <= LAG_PART * report.p99:  # not where one of them is nan
        return ""
    return f"the generator was {report.lag:.2f} ms late itself, of {report.p99:.2f} ms"


def capacities_in_words(capacities: dict[str, float], rate: float) -> str:
    found = ", ".join(f"{name} {capacity:.0f}/s" for name, capacity in capacities.items())
    return f"capacity: {found}; offered to each: {rate:.0f}/s"
