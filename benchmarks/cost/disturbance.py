"""When the host took a core away while something was measured: what a virtual machine's kernel accounts as stolen.

Rule of this file: what was disturbed is known from the kernel's account alone, never from what was measured. So to
leave those seconds out says nothing in favour of anybody, however slow or fast the requests in them were.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from experiments import cpu_time

LOOK = 0.1
"""Seconds from one look at the account to the next."""

BEFORE, AFTER = 0.05, 0.2
"""Seconds around it that count as disturbed: who was on the way then, and until what had piled up is served."""

Spans = tuple[tuple[float, float], ...]
"""From, until: disjoint and ascending, in seconds of one clock."""


@asynccontextmanager
async def disturbances(
    cores: Sequence[int], stolen: Callable[[Sequence[int]], float] = cpu_time.stolen_seconds
) -> AsyncIterator[list[tuple[float, float]]]:
    """Watch `cores` while the block runs; yields the spans between two looks in which any was taken, as they come.

    Instants of `time.monotonic()`. The kernel counts in ticks of 10 ms, so what is stolen in smaller pieces shows when
    it adds up to one.
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
    """The same in seconds from `zero`, with what lies around each, and those that touch as one."""
    found: list[tuple[float, float]] = []
    for start, end in spans:
        since, until = start - zero - BEFORE, end - zero + AFTER
        if found and since <= found[-1][1]:
            since = found.pop()[0]
        found.append((since, until))
    return tuple(found)
