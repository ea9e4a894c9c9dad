"""Recorded arrivals: a recording of the balancer, a trace of inference, or text with a request per line, its instant in
seconds.

Of text only the first column is read, up to a comma or a space, and one that the first line calls `key`; `#` begins a
comment at the beginning of a line, behind a space or the instant. Instants count from the first, so a recording may
begin at any time of day.
"""

from __future__ import annotations

import csv
import re
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

import numpy as np

from experiments.errors import BadInputError
from experiments.recorded.inference_trace import is_trace, read_lines, read_trace
from experiments.recorded.recording import Keys, is_recording, read_recording
from experiments.run_data import Floats

COMMENT = re.compile(r"(^[^\s,]*|\s)#.*")


def recorded(path: str) -> Floats:
    """Ascending instants in seconds from the first, shape (n,). Raises `BadInputError` naming the line."""
    return requests_in(path)[0]


@lru_cache(maxsize=8)
def requests_in(path: str) -> tuple[Floats, Keys]:
    """The instants, and the key of each request; no keys if the file has none. Raises as `recorded` does."""
    if is_recording(Path(path)):
        recording = read_recording([Path(path)])
        counted, keys = recording.instants, recording.keys
    else:
        counted, keys = (read_trace(path).instants, ()) if is_trace(path) else read_text(path)
    counted.flags.writeable = False  # cached and shared by all callers
    return counted, keys


def quantum_of(path: str) -> float:
    """Seconds within which the requests of an instant of the file came; 0 where its instants are exact."""
    return read_trace(path).step if is_trace(path) else 0.0


def failed_in(path: str) -> int:
    """Number of failed requests that the file holds and a replay leaves out."""
    return read_trace(path).failed if is_trace(path) else 0


def spread(instants: Floats, quantum: float, rng: np.random.Generator) -> Floats:
    """Each instant moved by an even draw from `quantum` seconds, in the order of the requests."""
    return np.sort(instants + rng.uniform(0.0, quantum, len(instants))) if quantum else instants


def read_text(path: str) -> tuple[Floats, Keys]:
    """Ascending instants of a text file, and keys. Raises `BadInputError` naming the line."""
    lines = read_lines(path)
    head = [word.lower() for word in cells_of(lines[0])]
    column = head.index("key") if "key" in head else 0
    found = [one for number, line in enumerate(lines, 1) for one in read(path, number, line, column)]
    if not found:
        raise BadInputError(f"load.file: {path} holds no instant")
    found.sort(key=itemgetter(0))
    instants = np.array([instant for instant, _ in found], dtype=np.float64)
    keys = tuple(key for _, key in found)
    return instants - instants[0], keys if any(keys) else ()


def cells_of(line: str) -> list[str]:
    """Cells of a line: between its commas, as a spreadsheet writes them, or its words if it has none."""
    line = COMMENT.sub(r"\1", line)
    try:
        cells = next(csv.reader([line], skipinitialspace=True)) if "," in line else line.split()
    except csv.Error:
        return [line]
    return [cell.strip() for cell in cells] if any(cells) else []


def read(path: str, number: int, line: str, column: int) -> list[tuple[float, str | None]]:
    """Instant and key of one line, or none if it has only a comment or, as the first line, column names. That line may
    begin with a byte order mark."""
    cells = cells_of(line.removeprefix("\ufeff" * (number == 1)))
    words = cells[0].split() or [""] if cells else []
    try:
        found = [float(words[0])] if words else []
    except ValueError:
        found = [] if number == 1 and re.match(r'"?[^\W\d]', words[0]) else [np.nan]
    if found and not np.isfinite(found[0]):
        raise BadInputError(f"load.file: {path}, line {number}: {words[0][:40]!r} is no number of seconds")
    return [(instant, (cells[column] or None) if 0 < column < len(cells) else None) for instant in found]
