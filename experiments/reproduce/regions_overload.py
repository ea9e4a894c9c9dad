"""Ten thousand clients in front of a balancer that may open 256 files.

Only the balancer is limited. A client connects, makes its calls and reconnects when the connection closes; a request
without a success response has failed.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path

from experiments.platform.processes import Child, all_of
from experiments.reproduce import launch
from experiments.reproduce.client import Client
from experiments.reproduce.launch import BalancerFile
from experiments.reproduce.regions_cases import PLACES, Overload, Plan, Results
from experiments.reproduce.regions_runs import all_workers

OTHER_FILES = 400
"""Descriptors of this process besides those of clients."""


async def overloads(plan: Plan, folder: Path, results: Results) -> None:
    """Run each number of clients in order, as far as this process may open as many files."""
    limit = file_limit()
    async with AsyncExitStack() as stack:
        workers = await all_workers(stack, plan.overload_scale)
        endpoints = [
            {"id": place.worker, "region": place.region, "address": "http://{}:{}".format(*worker.address)}
            for place, worker in zip(PLACES, workers, strict=True)
        ]
        file = BalancerFile({"seed": 1, "policy": "least-in-flight"}, {}, endpoints)
        for at_once, requests in plan.overloads:
            if at_once + OTHER_FILES > limit:
                results.skipped.append(
                    f"{at_once} clients at once: this process may open {limit} files (ulimit -Hn)"
                )
                continue
            async with AsyncExitStack() as inner:
                balancer = await launch.balancer(f"for {at_once}", file, folder, inner, plan.descriptors)
                results.overloads.append(await overload(balancer, at_once, requests, plan.descriptors))


async def overload(balancer: Child, at_once: int, requests: int, descriptors: int) -> Overload:
    """Start all clients at once; each makes its share of the requests."""
    ended: list[float] = []
    failed = 0
    began_at = time.monotonic()

    async def calls(count: int) -> None:
        nonlocal failed
        client = Client(*balancer.address)
        try:
            for _ in range(count):
                failed += not (await client.ask()).is_ok
                ended.append(time.monotonic() - began_at)
        finally:
            client.close()

    await all_of(calls(count) for count in shares(requests, at_once))
    return Overload(at_once, requests, descriptors, failed, tuple(ended))


def shares(requests: int, clients: int) -> list[int]:
    """Split `requests` into whole parts that differ by at most one."""
    each, more = divmod(requests, clients)
    return [each + (number < more) for number in range(clients)]


def file_limit() -> int:
    """Open-file limit of this process, after raising the soft limit to the hard one."""
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return soft if soft != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
