"""Steal time: spans in which the hypervisor took a core away, from the kernel's accounting.

Decided by the accounting alone, never by measured values, so excluding these seconds is not biased by the latencies in
them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from experiments.platform import cpu_time

LOOK = 0.1
"""Seconds between two readings."""

BEFORE, AFTER = 0.05, 0.2
"""Seconds around a span that count as disturbed: requests in flight before, and the backlog after."""

Spans = tuple[tuple[float, float], ...]
"""Disjoint ascending spans (start, end), in seconds of one clock."""


@asynccontextmanager
async def disturbances(
    cores: Sequence[int], stolen: Callable[[Sequence[int]], float] = cpu_time.stolen_seconds
) -> AsyncIterator[list[tuple[float, float]]]:
    """Watch `cores` while the block runs; yields a growing list of spans between two readings in which any was stolen.

    Instants of `time.monotonic()`. The kernel counts in ticks of 10 ms, so smaller pieces show when they add up to one.
    """
    found: list[tuple[float, float]] = []
    watching = asyncio.ensure_future(_watch(partial(stolen, cores), found))
    try:
        yield found
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(stolen: Callable[[], float], found: list[tuple[float, float]]) -> None:
    at, before = time.monotonic(), stolen()
    while True:
        await asyncio.sleep(LOOK)
        now, total = time.monotonic(), stolen()
        if total > before:
            found.append((at, now))
        at, before = now, total


def widened(spans: Sequence[tuple[float, float]], zero: float) -> Spans:
    """Spans in seconds from `zero`, extended by `BEFORE` and `AFTER`, overlapping ones merged."""
    found: list[tuple[float, float]] = []
    for start, end in spans:
        since, until = start - zero - BEFORE, end - zero + AFTER
        if found and since <= found[-1][1]:
            since = found.pop()[0]
        found.append((since, until))
    return tuple(found)
