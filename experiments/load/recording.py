"""Recorded instants: a text file with one request per line, when it arrived in seconds; or a balancer's recording.

Rule of this file: of text only the first column is read, whatever stands behind a comma or a space; `#` begins a
comment. What counts is the distance from the first instant, so a recording may begin at any time of day.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from experiments.errors import BadInputError
from experiments.load.samples import Floats
from experiments.record.reader import is_recording, read_recording

LARGEST = 256 << 20
"""Bytes of text: some ten million requests."""


@lru_cache(maxsize=8)
def recorded(path: str) -> Floats:
    """Ascending instants in seconds from the first, shape (n,). Raises BadInputError naming the line."""
    if is_recording(Path(path)):
        return recorded_by_balancer(path)
    try:
        lines = checked_file(Path(path)).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # UnicodeDecodeError is one, and so is a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise BadInputError(f"load.file: {path} cannot be read: {reason}") from None
    instants = np.sort(
        [instant for number, line in enumerate(lines, 1) for instant in read(path, number, line)]
    )
    if not len(instants):
        raise BadInputError(f"load.file: {path} holds no instant")
    counted = np.asarray(instants - instants[0], dtype=np.float64)
    counted.flags.writeable = False  # it is shared by whoever asks again
    return counted


def checked_file(path: Path) -> Path:
    """A file that ends, and that memory has room for. Raises BadInputError and OSError."""
    size = path.stat().st_size
    if not path.is_file() or size > LARGEST:
        raise BadInputError(f"load.file: {path}: must be a file of at most {LARGEST >> 20} MiB")
    return path


def recorded_by_balancer(path: str) -> Floats:
    """The same of a recording that a balancer has written. Raises BadInputError."""
    instants = read_recording([Path(path)]).instants
    instants.flags.writeable = False
    return instants


def read(path: str, number: int, line: str) -> list[float]:
    """The instant in one line, or none if it has only a comment or, being the first, the names of columns."""
    words = line.partition("#")[0].replace(",", " ").split()
    try:
        found = [float(words[0])] if words else []
    except ValueError:
        found = [] if number == 1 else [np.nan]
    if found and not np.isfinite(found[0]):
        raise BadInputError(f"load.file: {path}, line {number}: {words[0][:40]!r} is no number of seconds")
    return found
