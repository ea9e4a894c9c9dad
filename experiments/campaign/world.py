"""Where a run comes from: real processes, or the simulator. Whoever asks for runs one by one need not know.

Rule of this file: one signature for both, and the same `Run` from both.
"""

from __future__ import annotations

from collections.abc import Callable

from experiments.campaign.results import PlannedRun
from experiments.campaign.scenario import Entry, Scenario
from experiments.load.samples import Run

World = Callable[[Scenario, Entry, int, int, int], Run]
"""(scenario, entry, block, order, seed of the block) -> its run."""


def world_of(is_simulated: bool) -> World:
    """The one that was asked for."""
    return simulated if is_simulated else measured


def measured(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    """A fresh fleet of real processes. Raises FleetFailedError, and KeyboardInterrupt after taking it down."""
    import uvloop  # not where nothing is measured

    from experiments.campaign.trial import run_trial

    planned = PlannedRun(block=block, order=order, label=entry.label, seed=seed)
    return uvloop.run(run_trial(scenario, planned, lambda ledger: None))


def simulated(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    """Virtual time. Raises BadInputError where the simulator cannot do what the scenario says."""
    from experiments.simulator.run import simulate

    return simulate(scenario, entry, block, order, seed)
