"""Base of reproductions that run in the simulator: runs, claims of the source beside own results, and their bounds."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from experiments.generator.arrivals import first_instants
from experiments.reproduce.reproduction import ReportProgress, Reproduction
from experiments.run_data import Flags, Floats, Kind
from experiments.scenario.scenario import Entry, Scenario
from experiments.simulator.clock import Call
from experiments.simulator.simulation import Simulation
from experiments.simulator.translation import model_of
from experiments.stats.comparison import average, typical
from policies.policy import Policy

BARE: dict[str, Any] = {"retries": 0, "outlier_detection": {"failures": 0, "success_rate": 0.0}}
"""Settings of a balancer that neither retries nor ejects, so that only the policy decides."""

Interval = tuple[float, float, float]
"""Mean, and the ends of its confidence interval."""


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRun:
    """Requests of one run, in order: instants in seconds from its start, and the policy after it.

    `utilisation` is the share of its slots that each worker has used, 0 to 1.
    """

    due: Floats
    latency: Floats
    ok: Flags
    span: float
    utilisation: Floats
    policy: Policy


def simulated(scenario: Scenario, entry: Entry, seed: int, settling: float = 0.0) -> SimulatedRun:
    """Simulate without warm-up, leaving out the first `settling` seconds of an open loop.

    Raises `BadInputError`, `SimulationError`.
    """
    model, load = model_of(scenario, entry, seed), scenario.load_of(entry)
    simulation = Simulation(model, seed, entry.label)
    simulation.begin_steps()
    at_first: list[Floats] = []
    simulation.agenda.add(settling, Call(lambda now: at_first.append(busy_seconds(simulation))))
    if load.mode == "closed":
        columns = simulation.closed(load.batch, load.planned)
    else:
        columns = simulation.open(first_instants(load, seed, scenario.time_scale))
    span = simulation.clock.at - settling
    used = busy_seconds(simulation) - at_first[0]
    counts = columns.due >= settling
    return SimulatedRun(
        columns.due[counts],
        (columns.latencies + model.overhead)[counts],
        np.asarray(columns.kinds == Kind.OK)[counts],
        span,
        used / (span * np.array([one.slots for one in model.workers])),
        simulation.fleet.balancers[0].router.policy,
    )


def busy_seconds(simulation: Simulation) -> Floats:
    """Slot-seconds that each worker has served so far."""
    workers, now = simulation.fleet.workers.values(), simulation.clock.at
    stations = (worker.slots if worker.shared is None else worker.shared for worker in workers)
    return np.array([station.busy_seconds(now) for station in stations])


def mean_of(values: Sequence[float]) -> Interval:
    """Mean of at least two runs with its 95 % confidence interval, by Student's t."""
    found = average(values)
    return found.ratio, found.low, found.high


def ratio_of(values: Sequence[float]) -> Interval:
    """The same of positive ratios, one for each run: their geometric mean, by Student's t of their logarithms."""
    found = typical(values)
    return found.ratio, found.low, found.high


def written(interval: Interval, form: Callable[[float], str]) -> str:
    """Mean and interval as text."""
    mean, low, high = interval
    return f"{form(mean)} [{form(low)}, {form(high)}]"


class SimulatedReproduction(Reproduction):
    """A reproduction in virtual time. Its bounds are the claims of the source; those that disagree come first."""

    @abstractmethod
    def setup(self) -> str:
        """What is simulated, printed before it begins."""

    @abstractmethod
    def runs(self, seed: int) -> Iterable[str]:
        """Do one run after the other; each item says what comes next. Raises `SimulationError`."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """Own results in full."""

    def introduction(self) -> str:
        source = self.document
        return f"{source.title}\n{source.publisher}\n{source.link}\n\n{self.setup()}"

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        for text in self.runs(seed):
            progress(text)
            await asyncio.sleep(0)  # an interrupt is noticed here

    def findings(self) -> Sequence[Table | Text | str]:
        verdicts = self.verdicts()
        differ = [
            Text(f"Disagrees: {one.subject}. Source: {one.bound}; here: {one.found}.", style="bold")
            for one in verdicts
            if one.is_met is False
        ]
        return [*differ, *self.tables()] if verdicts else []

    def content(self) -> dict[str, Any]:
        return self.results()

    @abstractmethod
    def results(self) -> dict[str, Any]:
        """Own results for JSON."""
