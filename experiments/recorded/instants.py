"""Recorded arrivals: a text file with one request per line, its instant in seconds; or a recording of the balancer.

Of text only the first column is read, up to a comma or a space; `#` begins a comment. Instants count from the first, so
a recording may begin at any time of day.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from experiments.errors import BadInputError
from experiments.recorded.recording import is_recording, read_recording
from experiments.run_data import Floats

MAX_FILE_BYTES = 256 << 20
"""Maximum size of a text file in bytes: some ten million requests."""


@lru_cache(maxsize=8)
def recorded(path: str) -> Floats:
    """Ascending instants in seconds from the first, shape (n,). Raises `BadInputError` naming the line."""
    is_ours = is_recording(Path(path))
    counted = read_recording([Path(path)]).instants if is_ours else read_text(path)
    counted.flags.writeable = False  # cached and shared by all callers
    return counted


def read_text(path: str) -> Floats:
    """Ascending instants of a text file. Raises `BadInputError` naming the line."""
    try:
        lines = checked_file(Path(path)).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # ValueError includes UnicodeDecodeError and a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise BadInputError(f"load.file: {path} cannot be read: {reason}") from None
    instants = np.sort(
        [instant for number, line in enumerate(lines, 1) for instant in read(path, number, line)]
    )
    if not len(instants):
        raise BadInputError(f"load.file: {path} holds no instant")
    return np.asarray(instants - instants[0], dtype=np.float64)


def checked_file(path: Path) -> Path:
    """Check that the path is a regular file that fits in memory. Raises `BadInputError` and `OSError`."""
    size = path.stat().st_size
    if not path.is_file() or size > MAX_FILE_BYTES:
        raise BadInputError(f"load.file: {path}: must be a file of at most {MAX_FILE_BYTES >> 20} MiB")
    return path


def read(path: str, number: int, line: str) -> list[float]:
    """Instant of one line, or none if it has only a comment or, as the first line, column names."""
    words = line.partition("#")[0].replace(",", " ").split()
    try:
        found = [float(words[0])] if words else []
    except ValueError:
        found = [] if number == 1 else [np.nan]
    if found and not np.isfinite(found[0]):
        raise BadInputError(f"load.file: {path}, line {number}: {words[0][:40]!r} is no number of seconds")
    return found
