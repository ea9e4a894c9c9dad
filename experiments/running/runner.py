"""Interface between the loop that executes a campaign and what executes its runs, and the facts that runs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from experiments.generator.ledger import Ledger
from experiments.platform.build import versions
from experiments.results.directory import PlannedRun
from experiments.run_data import Run, RunFacts, Samples, WorldName
from experiments.scenario.scenario import Entry, Scenario
from experiments.stats.measures import achieved_rate


class Interrupted(Exception):
    """The run was stopped; `run` holds the samples up to then."""

    def __init__(self, run: Run) -> None:
        super().__init__("interrupted")
        self.run = run


class Observer:
    """Callbacks for the progress of a campaign; a subclass has those that it needs."""

    def machine_busy(self, planned: PlannedRun, taken: float) -> None: ...
    def run_started(self, planned: PlannedRun) -> None: ...
    def load_started(self, ledger: Ledger) -> None: ...
    def run_ended(self, planned: PlannedRun, run: Run) -> None: ...


class Observers(Observer):
    """Passes everything on to several observers, in their order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def machine_busy(self, planned: PlannedRun, taken: float) -> None:
        for observer in self._observers:
            observer.machine_busy(planned, taken)

    def run_started(self, planned: PlannedRun) -> None:
        for observer in self._observers:
            observer.run_started(planned)

    def load_started(self, ledger: Ledger) -> None:
        for observer in self._observers:
            observer.load_started(ledger)

    def run_ended(self, planned: PlannedRun, run: Run) -> None:
        for observer in self._observers:
            observer.run_ended(planned, run)


class Runner(Protocol):
    """Where runs are executed: on a fleet of processes, or in virtual time."""

    @property
    def name(self) -> WorldName: ...

    def run(self, scenario: Scenario, planned: PlannedRun, observer: Observer) -> Run:
        """Execute one planned run.

        Raises `ExperimentError`, `Interrupted` when stopped after the load has started, else `KeyboardInterrupt`.
        """
        ...


def facts_of(scenario: Scenario, entry: Entry, requests: int, samples: Samples, **others: Any) -> RunFacts:
    """Facts of a run of a load generator or a simulation in which `requests` were planned, and the `others`."""
    load = scenario.load_of(entry)
    is_open = load.mode == "open"
    return RunFacts(
        label=entry.label,
        policy=entry.policy.model_dump(),
        mode=load.mode,
        batch=None if is_open else load.batch,
        offered_rate=requests / load.duration / scenario.time_scale if is_open else None,
        achieved_rate=achieved_rate(samples),
        requests=requests,
        timeout=scenario.timeout * scenario.time_scale,
        time_scale=scenario.time_scale,
        tpot_slo=None if scenario.inference is None else scenario.inference.tpot_slo,
        versions=versions(),
        **others,
    )
