"""Limit of open files of this process and of those that it starts."""

from __future__ import annotations

import sys

from experiments.errors import FleetFailedError


def allow_descriptors(count: int | None = None) -> None:
    """Raise the soft limit of open files to `count` if needed, or to the hard limit. Raises `FleetFailedError`."""
    if sys.platform == "win32":
        return
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if count is None else count
    if soft == wanted or (count is not None and (soft == resource.RLIM_INFINITY or soft >= count)):
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        raise FleetFailedError(f"{wanted} open files are needed, and the limit is {hard}") from None
