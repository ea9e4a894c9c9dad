"""Exceptions of the experiments; each carries the exit code of the command that it ends.

Exit codes follow k6: 0 success, 1 a threshold failed, 2 bad input, 3 a process of the fleet failed, 130 interrupted by
the user.
"""

from __future__ import annotations

STOPPED = 130
"""Exit code after an interruption."""


class ExperimentError(Exception):
    """Base of the errors that end a command with one line on standard error."""

    exit_code = 3


class BadInputError(ExperimentError):
    """A scenario, option or directory that cannot be used; the message names the field and the allowed values."""

    exit_code = 2


class FleetFailedError(ExperimentError):
    """A worker or the balancer did not start, or died; the message carries the tail of its standard error."""
