"""Exceptions of the simulator. Bad input raises the errors of `experiments.errors`."""

from __future__ import annotations

from experiments.errors import ExperimentError


class SimulationError(ExperimentError):
    """Defect of the simulator, not of the scenario."""


class AuditError(SimulationError):
    """A request was lost or counted twice."""


class StuckError(SimulationError):
    """The run cannot end: requests are left and no event is scheduled."""
