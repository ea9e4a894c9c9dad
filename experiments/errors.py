"""The one tree of errors of this room; each knows the exit code of the command that it ends.

Exit codes follow k6's habit: 0 all well, 1 a threshold failed, 2 the input was bad, 3 the fleet failed us,
130 the user stopped the campaign.
"""

from __future__ import annotations


class ExperimentError(Exception):
    """Anything that ends a command with one line on standard error."""

    exit_code = 3


class BadInputError(ExperimentError):
    """A scenario, option or directory that cannot be used; it names the field and what is allowed."""

    exit_code = 2


class FleetFailedError(ExperimentError):
    """A worker or the balancer did not start, or died; the message carries the tail of its standard error."""

    exit_code = 3
