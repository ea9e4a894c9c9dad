"""Runner of `experiments load`: each run is a load on a service that runs already.

Where policies are compared, the run's policy is put in force before its warm-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from experiments.generator.arrivals import first_instants
from experiments.generator.generator import SPARE_CONNECTIONS
from experiments.measured.runner import conclude, run_loop
from experiments.platform.terminal import interruptible
from experiments.results.directory import PlannedRun
from experiments.run_data import Run, WorldName
from experiments.running.runner import Interrupted, Observer
from experiments.scenario.load import Load
from experiments.scenario.scenario import Scenario
from experiments.scenario.service import ServiceScenario
from experiments.service.generator import ServiceGenerator
from experiments.service.target import Destination
from experiments.switchback.turns import PolicyTurns, status_of


class ServiceRunner:
    """Measures planned runs on `destinations`, by label of the entry. Implements `Runner`."""

    name: Final[WorldName] = "measured"

    def __init__(self, destinations: Mapping[str, Destination], turns: PolicyTurns | None = None) -> None:
        self._destinations = destinations
        self._turns = turns

    def run(self, scenario: Scenario, planned: PlannedRun, observer: Observer) -> Run:
        """Measure one planned run.

        Raises `ExperimentError`, `Interrupted`, and before the load `KeyboardInterrupt`.
        """
        assert isinstance(scenario, ServiceScenario)
        try:
            return run_loop(interruptible(self._measure(scenario, planned, observer)))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def _measure(self, scenario: ServiceScenario, planned: PlannedRun, observer: Observer) -> Run:
        entry = scenario.entry(planned.label)
        if self._turns is not None:
            if self._turns.rails is None:
                first = self._generator(scenario, planned, scenario.load)
                await self._turns.observe_initial(partial(first.run, 1))
            await self._turns.apply(entry.policy.model_dump())
        warm_requests = await self._warm_up(scenario, planned)
        generator = self._generator(scenario, planned, scenario.load)
        observer.load_started(generator.ledger)
        status: dict[str, Any] = {}
        try:
            if self._turns is None:
                await generator.run(spare_of(scenario))
            else:
                window = await self._turns.guarded(partial(generator.run, spare_of(scenario)))
                status = status_of(entry.policy.model_dump(), window)
        except asyncio.CancelledError:
            raise Interrupted(conclude(scenario, entry, planned, generator.ledger, {}, ())) from None
        run = conclude(scenario, entry, planned, generator.ledger, status, ())
        return Run(run.facts.model_copy(update={"warmup_requests": warm_requests}), run.samples)

    async def _warm_up(self, scenario: ServiceScenario, planned: PlannedRun) -> int:
        """Offer the same rate for a short time; returns the number of requests."""
        seconds = scenario.service.warmup
        if not seconds:
            return 0
        load = Load(mode="open", arrivals="constant", rate=scenario.load.rate, duration=seconds)
        generator = self._generator(scenario, planned, load)
        await generator.run(spare_of(scenario))
        return generator.count

    def _generator(self, scenario: ServiceScenario, planned: PlannedRun, load: Load) -> ServiceGenerator:
        instants = first_instants(load, planned.seed, 1.0)
        destination = self._destinations[planned.label]
        most = scenario.service.connections
        return ServiceGenerator(destination, instants, scenario.timeout, most, planned.seed)


def spare_of(scenario: ServiceScenario) -> int:
    """Connections to open before a run."""
    return min(SPARE_CONNECTIONS, scenario.service.connections)
