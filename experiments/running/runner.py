"""Interface between the loop that executes a campaign and what executes its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from experiments.generator.ledger import Ledger
from experiments.results.directory import PlannedRun
from experiments.run_data import Run, WorldName
from experiments.scenario.scenario import Scenario


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
