"""The simulated world: planned runs in virtual time."""

from __future__ import annotations

import gc
from typing import Final

from experiments.results.directory import PlannedRun
from experiments.run_data import Run, WorldName
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import simulate


class SimulatedWorld:
    """Execute planned runs in the simulator. Implements `World`."""

    name: Final[WorldName] = "simulated"

    def run(self, scenario: Scenario, planned: PlannedRun, observer: object = None) -> Run:
        """Simulate one planned run. Raises `BadInputError` where the simulator does not support the scenario."""
        gc.collect()  # the last simulation contains reference cycles, and the next one would need twice the memory
        entry = scenario.entry(planned.label)
        return simulate(scenario, entry, planned.block, planned.order, planned.seed)
