"""Ten thousand clients in front of a balancer that may open 256 files.

Only the balancer is limited. A client connects, makes its calls and reconnects when the connection closes; a request
without a success response has failed.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path

from experiments.processes import Child
from experiments.reproduce import launch
from experiments.reproduce.api_calls import all_of
from experiments.reproduce.client import Client
from experiments.reproduce.evaluation import PLACES, Evaluation, Overload, Setup
from experiments.reproduce.evaluation_runs import six
from experiments.reproduce.launch import BalancerFile

SPARE = 400
"""Descriptors of this process besides those of clients."""


async def crushes(setup: Setup, folder: Path, found: Evaluation, limit: int) -> None:
    """Run each number of clients in order; `limit` is the open-file limit of this process."""
    async with AsyncExitStack() as stack:
        workers = await six(stack, setup.crush_scale)
        for at_once, requests in setup.crushes:
            if at_once + SPARE > limit:
                found.skipped.append(
                    f"{at_once} clients at once: this process may open {limit} files (ulimit -Hn)"
                )
                continue
            async with AsyncExitStack() as inner:
                file = BalancerFile({"seed": 1, "policy": "least-in-flight"}, {}, endpoints(workers))
                name = f"crushed by {at_once}"
                unit = await launch.unit(name, file, folder, inner, setup.descriptors)
                found.crushes.append(await crush(unit, at_once, requests, setup.descriptors))


def endpoints(workers: list[Child]) -> list[dict[str, object]]:
    """All six endpoints in their regions."""
    return [
        {"id": place.worker, "region": place.region, "address": "http://{}:{}".format(*worker.address)}
        for place, worker in zip(PLACES, workers, strict=True)
    ]


async def crush(unit: Child, at_once: int, requests: int, descriptors: int) -> Overload:
    """Start all clients at once; each makes its share of the requests."""
    ended: list[float] = []
    failed = 0
    began_at = time.monotonic()

    async def client(calls: int) -> None:
        nonlocal failed
        connection = Client(*unit.address)
        try:
            for _ in range(calls):
                failed += not (await connection.ask()).is_ok
                ended.append(time.monotonic() - began_at)
        finally:
            connection.close()

    await all_of(client(calls) for calls in shares(requests, at_once))
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
