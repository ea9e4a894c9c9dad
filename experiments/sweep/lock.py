"""File lock that allows one driver per catalogue; a second one would compute the same cells again.

The kernel releases the lock when the process ends. The empty lock file stays, because deleting it would be a race.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from experiments.errors import BadInputError


@contextmanager
def only_driver(catalogue: Path) -> Iterator[None]:
    """Hold the catalogue's lock. Raises `BadInputError` while another process sweeps into the catalogue."""
    file = locked(catalogue)
    try:
        yield
    finally:
        file.close()


def locked(catalogue: Path) -> IO[str]:
    """Open the lock file and lock it. Raises `BadInputError` when another process holds the lock."""
    path = catalogue.with_name(f"{catalogue.name}-driver")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise BadInputError(f"{catalogue}: cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BadInputError(f"{catalogue}: another sweep is writing into it") from None
    return file
