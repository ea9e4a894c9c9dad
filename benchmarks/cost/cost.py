"""CPU time per forwarded request in microseconds, from the kernel's accounting before and after a closed-loop load.

Latency is not read: the load is as fast as possible.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.cost.plan import Plan, Run
from benchmarks.harness.closed_load import Load
from benchmarks.harness.cpu_reading import CpuReading
from benchmarks.harness.peer_processes import RunningPeer
from experiments.platform import cpu_time
from experiments.platform.processes import Child


async def cost(plan: Plan, load: Load, worker: Child, proxy: RunningPeer, run: Run) -> Run:
    """Measure one run. Raises `FleetFailedError`."""
    place = partial(cpu_time.pinned_to, plan.rest_core)
    await load.run(proxy.port, plan.warm_up, place)
    try:
        before = CpuReading.now(proxy.child, worker, plan.cores)
        outcome = await load.run(proxy.port, plan.seconds, place)
        spent = CpuReading.now(proxy.child, worker, plan.cores).since(before)
    except OSError:
        raise proxy.died() from None
    return replace(
        run,
        figure=spent.proxy.total / max(1, outcome.requests) * 1e6,
        requests=outcome.requests,
        rate=outcome.rate,
        user_share=spent.proxy.user_share,
        taken=spent.taken,
        fault=outcome.fault,
    )
