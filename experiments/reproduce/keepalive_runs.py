"""Cases of `keepalive` with their theoretical latencies, and their measurement: workers, a balancer, sequential calls.

One call at a time on the whole machine; every block has every case once in random order, so that temporary slowness
affects all alike.

A round trip is R = 2 × one way, S the service time. A new connection costs 1R for TCP, and 2R more with TLS 1.2 or 1R
with TLS 1.3; the request itself R + S: that is the bound. Computation on both ends is not in it: every case has a
counterpart whose worker has no delay, and its time plus the round trips shows whether that explains a miss.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median

import numpy as np

from experiments.errors import FleetFailedError
from experiments.reproduce import launch
from experiments.reproduce.blocking_client import Target, client_context, consecutive_calls
from experiments.reproduce.judging import all_met, judged
from experiments.reproduce.launch import UNVERIFIED
from experiments.stats.comparison import Interval, average, typical

HANDSHAKES = {"1.2": 3, "1.3": 2}
"""Round trips before the first byte of a request, including TCP's."""

MAX_DEVIATION = 0.05
"""Allowed relative distance of a median from theory."""

MOST_OVERSLEEP = 0.001
"""Bound on the p90 of oversleeping in seconds; beyond it other processes use the machine, and no miss is judged."""

SOURCE_HTTP2_RATIO = 1.09
"""The source's ratio of HTTP/2 to HTTP/1.1 for one client."""


@dataclass(frozen=True, slots=True)
class KeepalivePlan:
    """`one_way` and `service` in seconds; `blocks`, in each of which every case makes `calls` requests."""

    one_way: float = 0.015
    service: float = 0.020
    blocks: int = 24
    calls: int = 4


QUICK = KeepalivePlan(blocks=4, calls=3)


@dataclass(frozen=True, slots=True)
class KeepaliveCase:
    """One way to call. `is_proxied`: through the balancer, which is near and keeps the connection to the worker.
    `is_near`: the worker has no network delay, so that only service and computation remain.
    """

    http: str
    tls: str
    keep_alive: bool
    is_proxied: bool = False
    is_near: bool = False

    @property
    def round_trips(self) -> tuple[int, int]:
        """Round trips of the first call and of later calls."""
        cold = HANDSHAKES[self.tls] + 1
        return cold, 1 if self.keep_alive else cold

    @property
    def near(self) -> KeepaliveCase:
        """The same case without network delay."""
        return replace(self, is_near=True)

    @property
    def name(self) -> str:
        kept = "keep-alive" if self.keep_alive else "none"
        near = ", near" if self.is_near else ""
        return f"HTTP/{self.http}, TLS {self.tls}, {'proxy' if self.is_proxied else kept}{near}"


DIRECT = tuple(
    KeepaliveCase(http, tls, kept) for tls, http, kept in product(("1.2", "1.3"), ("1.1", "2"), (True, False))
)
PROXIED = KeepaliveCase("1.1", "1.3", True, is_proxied=True)
CASES = (*DIRECT, PROXIED)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Consecutive calls of a case in one block: seconds of the first and of each later one.

    `oversleep` is how late a short sleep ended just before, in seconds: the delay that the machine itself adds.
    """

    case: KeepaliveCase
    block: int
    first: float
    later: tuple[float, ...]
    oversleep: float = 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of a call: `found` is the mean over blocks, `theory` round trips plus service, `expected` round
    trips plus the time of the counterpart without delay.
    """

    theory: float
    expected: float
    found: Interval

    @property
    def is_explained(self) -> bool:
        """Whether the mean is within 5 % of the round trips plus the counterpart's time."""
        return abs(self.found.ratio / self.expected - 1) <= MAX_DEVIATION

    def is_met(self, is_busy: bool) -> bool | None:
        """Whether it is within 5 % of theory."""
        low, high = ((1 + side * MAX_DEVIATION) * self.theory for side in (-1, 1))
        return judged(self.found, low, high, is_busy)


@dataclass(frozen=True, slots=True)
class KeepaliveRow:
    """First and later calls of a case."""

    case: KeepaliveCase
    first: Timing
    later: Timing

    @property
    def is_explained(self) -> bool:
        return self.first.is_explained and self.later.is_explained

    def is_met(self, is_busy: bool) -> bool | None:
        """Whether both are within 5 % of theory."""
        return all_met(timing.is_met(is_busy) for timing in (self.first, self.later))


def network_delay(case: KeepaliveCase, plan: KeepalivePlan) -> tuple[float, float]:
    """Seconds of network delay in the first call and in later calls."""
    first, later = case.round_trips
    return 2 * plan.one_way * first, 2 * plan.one_way * later


def rows_of(found: Sequence[Measurement], plan: KeepalivePlan) -> list[KeepaliveRow]:
    """One row for each case that was measured with and without delay, in order."""
    of_case = {case: [one for one in found if one.case == case] for far in CASES for case in (far, far.near)}
    return [
        keepalive_row(case, of_case[case], of_case[case.near], plan)
        for case in CASES
        if of_case[case] and of_case[case.near]
    ]


def keepalive_row(
    case: KeepaliveCase, found: Sequence[Measurement], near: Sequence[Measurement], plan: KeepalivePlan
) -> KeepaliveRow:
    triples = zip(network_delay(case, plan), calls_of(found), calls_of(near), strict=True)
    first, later = (
        Timing(1e3 * (delay + plan.service), 1e3 * delay + fmean(without), average(taken))
        for delay, taken, without in triples
    )
    return KeepaliveRow(case, first, later)


def calls_of(found: Sequence[Measurement]) -> tuple[list[float], list[float]]:
    """Milliseconds of each first call, and each median of the later calls."""
    return [1e3 * one.first for one in found], [1e3 * median(one.later) for one in found]


def http2_to_http1(found: Sequence[Measurement]) -> Interval | None:
    """Ratio of HTTP/2 to HTTP/1.1 for later calls with keep-alive, paired by block and TLS, with interval."""
    kept = {
        (one.block, one.case.tls, one.case.http): median(one.later)
        for one in found
        if one.case.keep_alive and not (one.case.is_proxied or one.case.is_near)
    }
    ratios = [
        took / kept[block, tls, "1.1"]
        for (block, tls, http), took in kept.items()
        if http == "2" and (block, tls, "1.1") in kept
    ]
    return typical(ratios) if ratios else None


def oversleep_of(found: Sequence[Measurement]) -> float:
    """p90 of oversleeping in seconds."""
    return float(np.percentile([one.oversleep for one in found], 90)) if found else 0.0


def is_busy(found: Sequence[Measurement]) -> bool:
    """Whether other processes used the machine."""
    return oversleep_of(found) > MOST_OVERSLEEP


def saved_by_keep_alive(rows: Sequence[KeepaliveRow], tls: str) -> float | None:
    """Milliseconds that keep-alive saves for each later call with HTTP/1.1; None if not measured."""
    later = {
        row.case.keep_alive: row.later.found.ratio
        for row in rows
        if row.case == KeepaliveCase("1.1", tls, row.case.keep_alive)
    }
    return later[False] - later[True] if len(later) == 2 else None


SLEEP = 0.002


async def measure(
    plan: KeepalivePlan, seed: int, folder: Path, measured: Callable[[Measurement], None]
) -> None:
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


async def targets_of(plan: KeepalivePlan, folder: Path, stack: AsyncExitStack) -> dict[KeepaliveCase, Target]:
    """Start workers and a balancer on the client's side of the link; returns the target of each case."""
    workers = {
        (tls, http): await worker(plan, tls, http, None, stack)
        for tls in ("1.2", "1.3")
        for http in ("1.1", "2")
    }
    own = await worker(plan, PROXIED.tls, PROXIED.http, plan.calls, stack)
    endpoint = {"id": "far", "region": "far", "address": f"https://{own.authority}"}
    balancer = await launch.balancer("near", {**UNVERIFIED, "endpoints": [endpoint]}, folder, stack)
    return {case: workers[case.tls, case.http] for case in DIRECT} | {PROXIED: Target(*balancer.address)}


async def worker(plan: KeepalivePlan, tls: str, http: str, most: int | None, stack: AsyncExitStack) -> Target:
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


def measurement(case: KeepaliveCase, target: Target, calls: int, block: int) -> Measurement:
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
