"""What can go wrong in a simulation. Bad input is `experiments.errors`' own."""

from __future__ import annotations

from experiments.errors import ExperimentError


class SimulationError(ExperimentError):
    """The simulator is wrong, not the scenario."""


class AuditError(SimulationError):
    """A run in which something was lost or counted twice."""


class StuckError(SimulationError):
    """A run that cannot end."""
