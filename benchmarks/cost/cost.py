"""CPU time per forwarded request in microseconds, from the kernel's accounting before and after a closed-loop load.

Latency is not read: the load is as fast as possible.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.cost.plan import Plan, Run
from benchmarks.harness.closed_load import Load
from benchmarks.harness.peer_processes import RunningPeer
from experiments import cpu_time
from experiments.processes import Child


async def cost(plan: Plan, load: Load, worker: Child, proxy: RunningPeer, run: Run) -> Run:
    """Measure one run. Raises `FleetFailedError`."""
    place = partial(cpu_time.pinned_to, plan.rest_core)
    await load.run(proxy.port, plan.warm_up, place)
    try:
        before = Reading.now(proxy.child, worker, plan)
        outcome = await load.run(proxy.port, plan.seconds, place)
        after = Reading.now(proxy.child, worker, plan)
    except OSError:
        raise proxy.died() from None
    spent = after.proxy - before.proxy
    return replace(
        run,
        figure=spent.total / max(1, outcome.requests) * 1e6,
        requests=outcome.requests,
        rate=outcome.rate,
        user_share=spent.user_share,
        taken=after.taken_since(before),
        fault=outcome.fault,
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU accounting at one instant: of the proxy, and, in seconds, of all benchmark processes and of the cores."""

    at: float
    proxy: cpu_time.Cpu
    ours: float
    cores: tuple[float, ...]

    @classmethod
    def now(cls, proxy: Child, worker: Child, plan: Plan) -> Reading:
        """Read the accounts now. Raises `OSError` if a process is gone."""
        spent = cpu_time.cpu_of(proxy.pid)
        ours = spent.total + cpu_time.cpu_of(worker.pid).total + cpu_time.cpu_of_ended_children()
        cores = sorted({plan.proxy_core, plan.rest_core})
        return cls(time.monotonic(), spent, ours, tuple(map(cpu_time.busy_seconds, cores)))

    def taken_since(self, before: Reading) -> float:
        """Share of the cores used by other processes since `before`, 0 to 1."""
        others = (sum(self.cores) - sum(before.cores)) - (self.ours - before.ours)
        return min(1.0, max(0.0, others / (self.at - before.at) / len(self.cores)))
