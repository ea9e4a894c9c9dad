"""What a worker process of ours does first.

Rule of this file: Dask calls it by name in each process that it starts. A terminal sends Ctrl-C to the whole group;
the driver alone answers it and ends its workers, which would fill the screen otherwise.
"""

from __future__ import annotations

import signal


def dask_setup(worker: object) -> None:
    """Leave Ctrl-C to the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
