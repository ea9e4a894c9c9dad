"""Run many seeds in several processes and print those that fail."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from multiprocessing import get_context

from tests.faultsim.draw import draw
from tests.faultsim.plan import Plan
from tests.faultsim.simulation import Simulation

SEEDS = 1 << 40
"""Upper bound of fresh seeds."""


def fault_of(plan: Plan, note: Callable[[str], None] | None = None) -> str | None:
    """The violation in a run of `plan`, in one line; None if there is none."""
    try:
        Simulation(plan, note).run()
    except Exception as fault:
        inside = fault.__cause__ or fault  # an exception that escaped a callback has its cause
        return f"{type(inside).__name__}: {inside}"
    return None


def kind_of(fault: str | None) -> str:
    """The kind of a violation: its message without numbers."""
    return "".join("0" if letter.isdigit() else letter for letter in fault or "")[:60]


def run(seed: int) -> tuple[int, int, str | None]:
    """The seed, the number of its requests, and its violation."""
    plan = draw(seed)
    return seed, len(plan.requests), fault_of(plan)


def begin() -> None:
    """Prepare a process: the garbage collector need not visit imported modules."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def search(first: int, count: int, processes: int) -> bool:
    """Run many; return whether all invariants held."""
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
