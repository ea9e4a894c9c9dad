"""Dask preload module of the local worker processes.

Dask calls it by name in each process that it starts. A terminal sends Ctrl-C to the whole process group; only the
driver handles it and ends its workers, which would otherwise print tracebacks.
"""

from __future__ import annotations

import signal


def dask_setup(worker: object) -> None:
    """Ignore SIGINT in a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
