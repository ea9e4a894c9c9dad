"""A substitute for the simulator that a sweep's processes can import: exact numbers in no time.

The result follows from the arguments alone. A test controls its progress through a directory named by the
environment: `started` is a pipe into which each cell writes when it begins, `hold` a pipe at which cells with late
seeds wait until it is opened for writing, and a file `broken` makes one policy fail.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from experiments.run_data import Kind, Run
from experiments.scenario.scenario import Entry, Scenario
from tests.support.runs import facts_of, run_of, samples_of

STAGE = "STEELYARD_FAKE_SIMULATOR"
LATE = 4
"""The first seed whose cells wait."""

BROKEN = "round-robin"


def simulate(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    """Exponential latencies whose mean depends on the policy, and one reset."""
    follow_stage(entry.label, seed)
    name = entry.policy.name
    rng = np.random.default_rng([seed, len(name), round(scenario.load.rate), len(scenario.name)])
    count, rate = 400, scenario.load.rate
    latency = rng.exponential(0.01 * len(name), count)
    kind = np.full(count, Kind.OK, dtype=np.int64)
    kind[7] = Kind.RESET
    facts = facts_of(scenario, entry, block, order, seed)
    samples = samples_of(
        np.arange(count) / rate,
        latency,
        status=200 * (kind == Kind.OK),
        kind=kind,
        worker=rng.integers(0, len(facts["places"]), count),
        attempts=np.ones(count, dtype=np.int64),
    )
    return run_of(samples, offered_rate=rate, achieved_rate=rate, **facts)


def follow_stage(label: str, seed: int) -> None:
    """Do what the test's directory asks for, if there is one."""
    if STAGE not in os.environ:
        return
    stage = Path(os.environ[STAGE])
    if (stage / "started").exists():
        with (stage / "started").open("w") as started:
            started.write(f"{os.getpid()} {label} {seed}\n")
    if (stage / "hold").exists() and seed >= LATE:
        (stage / "hold").open().close()
    if (stage / "broken").exists() and label == BROKEN:
        raise RuntimeError("out of\norder")
