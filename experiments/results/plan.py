"""Plan of a campaign: randomised complete blocks.

Within a block every entry runs once, in a random order, with the same seeds for arrivals and demand.
"""

from __future__ import annotations

import numpy as np

from experiments.results.directory import PlannedRun
from experiments.scenario.scenario import Scenario


def plan(scenario: Scenario) -> tuple[PlannedRun, ...]:
    """Plan of all runs in execution order, determined by the scenario and its seed."""
    return tuple(run for block in range(scenario.blocks) for run in plan_block(scenario, block))


def plan_block(scenario: Scenario, block: int) -> list[PlannedRun]:
    """Runs of one block, with the block's own seed and random order."""
    rng = np.random.default_rng([scenario.seed, block])
    seed = int(rng.integers(1, 2**31))
    order = rng.permutation(len(scenario.entries))
    return [
        PlannedRun(block=block, order=place, label=scenario.entries[index].label, seed=seed)
        for place, index in enumerate(order)
    ]
