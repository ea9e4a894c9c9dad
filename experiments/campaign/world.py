"""Source of a run: real processes or the simulator, behind one signature that returns the same `Run`."""

from __future__ import annotations

from collections.abc import Callable

from experiments.campaign.results import PlannedRun
from experiments.campaign.scenario import Entry, Scenario
from experiments.load.samples import Run

World = Callable[[Scenario, Entry, int, int, int], Run]
"""(scenario, entry, block, order, seed of the block) -> its run."""


def world_of(is_simulated: bool) -> World:
    """The simulator, or measurement on real processes."""
    return simulated if is_simulated else measured


def measured(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    """Run on a fresh fleet of real processes.

    Raises `FleetFailedError`, and `KeyboardInterrupt` after stopping the fleet.
    """
    import uvloop  # imported only when something is measured

    from experiments.campaign.trial import run_trial

    planned = PlannedRun(block=block, order=order, label=entry.label, seed=seed)
    return uvloop.run(run_trial(scenario, planned, lambda ledger: None))


def simulated(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    """Run in virtual time. Raises `BadInputError` where the simulator does not support the scenario."""
    from experiments.simulator.run import simulate

    return simulate(scenario, entry, block, order, seed)
