"""Total time of the same requests with each policy, in blocks.

Each is a run of the campaign, with fresh workers and a fresh balancer, in random order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from experiments.reproduce.evaluation import SCENARIO, Evaluation, PolicyRun, Setup
from experiments.results.directory import PlannedRun
from experiments.run.measured import measure
from experiments.run.world import Interrupted
from experiments.scenario.load import Load
from experiments.scenario.scenario import Scenario

WARM = 20
"""Warm-up requests to each worker before a run, and as many through the balancer."""


def scenario_of(setup: Setup) -> Scenario:
    """The campaign's scenario with the chosen policies and number of requests, in compressed time."""
    entries = tuple(entry for entry in SCENARIO.entries if entry.label in setup.labels)
    load = Load(mode="closed", batch=SCENARIO.load.batch, requests=setup.policy_requests)
    changes = {"entries": entries, "load": load, "time_scale": setup.policy_scale, "warmup": WARM}
    return SCENARIO.model_copy(update=changes)


async def run_policies(setup: Setup, seed: int, found: Evaluation, progress: Callable[[str], None]) -> None:
    """Run every policy once in each block. Raises `FleetFailedError`."""
    scenario, rng = scenario_of(setup), Random(seed)
    for block in range(setup.policy_blocks):
        for order, label in enumerate(rng.sample(setup.labels, len(setup.labels))):
            progress(f"policies, block {block + 1} of {setup.policy_blocks}: {label}")
            planned = PlannedRun(block=block, order=order, label=label, seed=seed + block)
            try:
                run = await measure(scenario, planned, lambda ledger: None)
            except Interrupted:
                raise asyncio.CancelledError from None
            samples = run.samples
            span = samples.span / setup.policy_scale
            found.policy_runs.append(PolicyRun(label, block, span, int((~samples.ok).sum())))
