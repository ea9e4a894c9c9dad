"""Many seeds: run, in several processes, and those told of that fail.

Rule of this file: it knows nothing of what happens in a run but whether all held.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from multiprocessing import get_context

from tests.faultsim.draw import draw
from tests.faultsim.plan import Plan
from tests.faultsim.simulation import Simulation

SEEDS = 1 << 40
"""Fresh seeds are drawn below it."""


def fault_of(plan: Plan, note: Callable[[str], None] | None = None) -> str | None:
    """What does not hold in a run of `plan`, in one line."""
    try:
        Simulation(plan, note).run()
    except Exception as fault:
        inside = fault.__cause__ or fault  # what escaped a callback has its cause with it
        return f"{type(inside).__name__}: {inside}"
    return None


def kind_of(fault: str | None) -> str:
    """Of which kind it is: its words without numbers."""
    return "".join("0" if letter.isdigit() else letter for letter in fault or "")[:60]


def run(seed: int) -> tuple[int, int, str | None]:
    """The seed, its requests, and what does not hold."""
    plan = draw(seed)
    return seed, len(plan.asks), fault_of(plan)


def begin() -> None:
    """Each process, before its first run: the collector need not look at what was imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def search(first: int, count: int, processes: int) -> bool:
    """Run many; whether all held."""
    started = time.monotonic()
    failed = requests = 0
    with get_context("spawn").Pool(processes, begin) as pool:
        for seed, asks, fault in pool.imap_unordered(run, range(first, first + count), chunksize=10):
            requests += asks
            if fault is not None:
                failed += 1
                print(f"seed {seed}: {fault}\n  again: python -m tests.faultsim {seed} --journal", flush=True)
    took = time.monotonic() - started
    print(f"{count} seeds from {first}, {requests} requests, {failed} failed, {took:.0f} s")
    return not failed
