"""Limit of open files of this process and of those that it starts."""

from __future__ import annotations

import math
import sys

from experiments.errors import FleetFailedError

MAX_DESCRIPTORS = 10_240
"""Soft limit where the hard one is infinite: macOS refuses a larger one (OPEN_MAX)."""


def open_files(wanted: float = math.inf) -> float:
    """Raise the soft limit of open files to `wanted` as far as this process may; returns the limit then in force."""
    if sys.platform == "win32":
        return wanted
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return math.inf if soft == resource.RLIM_INFINITY else soft
    most = max(soft, MAX_DESCRIPTORS) if hard == resource.RLIM_INFINITY else hard
    limit = int(min(most, wanted))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def allow_descriptors(count: int) -> None:
    """Raise the limit to at least `count`. Raises `FleetFailedError`."""
    if (limit := open_files(count)) < count:
        raise FleetFailedError(f"{count} open files are needed, and the limit is {limit:g}")
