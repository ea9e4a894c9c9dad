"""Measurements of `keepalive`: workers, a balancer, and sequential calls to them.

One call at a time on the whole machine; every block has every case once in random order, so that temporary slowness
affects all alike.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

from experiments.errors import FleetFailedError
from experiments.reproduce import launch
from experiments.reproduce.blocking_client import Connection, Target, client_context
from experiments.reproduce.keepalive_cases import DIRECT, PROXIED, Case, Measurement, Plan
from experiments.reproduce.launch import UNVERIFIED, BalancerFile

SLEEP = 0.002


async def measure(plan: Plan, seed: int, folder: Path, measured: Callable[[Measurement], None]) -> None:
    """Measure every case in each block. Raises `FleetFailedError`."""
    async with AsyncExitStack() as stack:
        far = await targets_of(plan, folder, stack)
        near = await targets_of(replace(plan, one_way=0.0), folder, stack)
        targets = far | {case.near: target for case, target in near.items()}
        rng = Random(seed)
        for block in range(-1, plan.blocks):  # the first block is warm-up and is not reported
            for case in rng.sample(list(targets), len(targets)):
                found = await asyncio.to_thread(measurement, case, targets[case], plan.calls, block)
                if block >= 0:
                    measured(found)


async def targets_of(plan: Plan, folder: Path, stack: AsyncExitStack) -> dict[Case, Target]:
    """Start workers and a balancer on the client's side of the link; returns the target of each case."""
    workers = {
        (tls, http): await worker(plan, tls, http, None, stack)
        for tls in ("1.2", "1.3")
        for http in ("1.1", "2")
    }
    own = await worker(plan, PROXIED.tls, PROXIED.http, plan.calls, stack)
    endpoint = {"id": "far", "region": "far", "address": f"https://{own.authority}"}
    file = BalancerFile(tables=UNVERIFIED, endpoints=[endpoint])
    balancer = await launch.balancer("near", file, folder, stack)
    return {case: workers[case.tls, case.http] for case in DIRECT} | {PROXIED: Target(*balancer.address)}


async def worker(plan: Plan, tls: str, http: str, most: int | None, stack: AsyncExitStack) -> Target:
    """Start a worker behind the emulated delay and wait until it is ready."""
    child = await launch.worker(
        stack,
        rtt=f"{2e3 * plan.one_way:g}ms" if plan.one_way else None,
        service=f"fixed:{1e3 * plan.service:g}ms",
        tls=tls,
        http=http,
        split_head=http == "2" or None,
        max_requests_per_connection=most,
    )
    return Target(*child.address, tls, http)


def measurement(case: Case, target: Target, calls: int, block: int) -> Measurement:
    """Make the calls of one case. Raises `FleetFailedError`."""
    try:
        # A new context has no session, so none is resumed. Made before the clock starts.
        context = client_context(target)
        oversleep = oversleeping()
        each = 1 if not case.keep_alive else calls
        took = [seconds for _ in range(calls // each) for seconds in consecutive_calls(target, context, each)]
    except (OSError, TimeoutError) as failure:
        raise FleetFailedError(f"{case.name}: {failure}") from None
    return Measurement(case, block, took[0], tuple(took[1:]), oversleep)


def oversleeping() -> float:
    """How late a sleep of 2 ms ends, in seconds."""
    due_at = time.perf_counter() + SLEEP
    time.sleep(SLEEP)
    return time.perf_counter() - due_at


def consecutive_calls(target: Target, context: ssl.SSLContext | None, calls: int) -> list[float]:
    """Seconds of each of `calls` requests on one connection; the first includes the handshakes."""
    took, began_at = [], time.perf_counter()
    connection = Connection(target, context)
    try:
        for _ in range(calls):
            response = connection.call()
            ended_at = time.perf_counter()
            took.append(ended_at - began_at)
            began_at = ended_at
            if response.status != 200:
                raise FleetFailedError(f"{target.authority} answered {response.status}")
    finally:
        connection.close()
    return took
