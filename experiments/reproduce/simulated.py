"""Base of reproductions that run in the simulator: runs, claims of the source beside own results, and their bounds."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from experiments.generator.arrivals import first_instants
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.reproduce.reproduction import Form, ReportProgress, Reproduction, written
from experiments.run_data import Flags, Floats, Kind
from experiments.scenario.scenario import Entry, Scenario
from experiments.simulator.clock import Call
from experiments.simulator.run import model_of
from experiments.simulator.simulation import Simulation
from experiments.stats.comparison import Interval, average
from policies.policy import Policy

BARE: dict[str, Any] = {"retries": 0, "outlier_detection": {"failures": 0, "success_rate": 0.0}}
"""Settings of a balancer that neither retries nor ejects, so that only the policy decides."""


def scenario_with(
    name: str,
    question: str,
    load: Mapping[str, Any],
    regions: Sequence[Mapping[str, Any]],
    policies: Mapping[str, Any],
    **more: Any,
) -> Scenario:
    """Scenario whose first region is home and whose first policy is the baseline; no request runs into a timeout."""
    return Scenario.model_validate(
        {
            "name": name,
            "question": question,
            "baseline": next(iter(policies)),
            "home_region": regions[0]["name"],
            "timeout": 3600.0,
            "balancer": BARE,
            "load": load,
            "regions": regions,
            "entries": [{"label": label, "policy": policy} for label, policy in policies.items()],
        }
        | more
    )


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
    """Simulate without warm-up; leave out the first `settling` seconds. Raises `BadInputError`, `SimulationError`."""
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


class SimulatedReproduction(Reproduction):
    """A reproduction in virtual time: figures by case and label, each a list with a value per seed.

    Its bounds are the claims of the source; those that disagree come first. `full` and `quick`: number of seeds, and
    seconds of a run, 0 where another amount ends it. `title` is that of the table, `what` its labels are, `forms` the
    format of each case, `heads` their names if others; the figure has a panel of `height` for each case.
    """

    cases: ClassVar[Sequence[Any]]
    full: ClassVar[tuple[int, float]]
    quick: ClassVar[tuple[int, float]]
    height: ClassVar[float]
    title: ClassVar[str]
    what: ClassVar[str] = "policy"
    forms: ClassVar[Sequence[Form]]
    heads: ClassVar[Sequence[str]] = ()

    def __init__(self, is_quick: bool) -> None:
        self._seeds, self._duration = self.quick if is_quick else self.full
        self._found: dict[Any, dict[str, list[Any]]] = {}

    @abstractmethod
    def setup(self) -> str:
        """What is simulated, printed before it begins."""

    @abstractmethod
    def simulate(self, case: Any, seed: int) -> dict[str, Any]:
        """Figure of each label. Raises `SimulationError`."""

    def draw(self, axes: Axes, case: str, found: Mapping[str, Interval]) -> None:
        """Draw the panel of a case."""

    def means(self, case: str) -> dict[str, Interval]:
        return {label: average(values) for label, values in self._found[case].items()}

    def introduction(self) -> str:
        source = self.document
        return f"{source.title}\n{source.publisher}\n{source.link}\n\n{self.setup()}"

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        for case in self.cases:
            found: dict[str, list[Any]] = {}
            for number in range(self._seeds):
                progress(f"{case}, seed {number + 1} of {self._seeds}")
                await asyncio.sleep(0)  # an interrupt is noticed here
                for label, value in self.simulate(case, seed + number).items():
                    found.setdefault(label, []).append(value)
            self._found[case] = found

    def findings(self) -> Iterator[Table | Text | str]:
        verdicts = [*self.verdicts()]
        for one in verdicts:
            if one.is_met is False:
                yield Text(f"Disagrees: {one.subject}. Source: {one.bound}; here: {one.found}.", style="bold")
        if verdicts:
            yield from self.tables()

    def tables(self) -> Iterator[Table]:
        columns = list(zip(map(self.means, self._found), self.forms, strict=False))
        rows = [(label, *(written(means[label], form) for means, form in columns)) for label in columns[0][0]]
        yield plain_table((self.what, *(self.heads or self._found)), rows, title=self.title)

    def figure(self) -> Figure:
        figure, panels = canvas.blank(self.height, 1, len(self._found))
        for axes, case in zip(panels, self._found, strict=True):
            axes.set_title(case, fontweight="bold")
            self.draw(axes, case, self.means(case))
        return figure

    def content(self) -> dict[str, Any]:
        duration = {"duration": self._duration} if self._duration else {}
        return {"seeds": self._seeds, **duration, "found": self._found}
