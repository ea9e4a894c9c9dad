"""What becomes of every request, as its client sees it.

Rule of this file: as the generator's ledger, in arrays made once: a row exists from the start, and its end is written
once. A row whose kind is `OPEN` has not ended.
"""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from experiments.load.samples import Floats, Kind, Samples

OPEN: Final = int(Kind.UNFINISHED)

NOBODY: Final = -1


class Columns:
    """Rows of `count` requests. `first` counts the rows that are warm-up, and left out of samples."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.due: array[float] = array("d", bytes(8 * count))
        self.ended: array[float] = array("d", bytes(8 * count))
        self.kind: array[int] = array("b", bytes([OPEN]) * count)
        self.status: array[int] = array("h", bytes(2 * count))
        self.worker: array[int] = array("i", [NOBODY]) * count
        self.attempts: array[int] = array("b", bytes(count))

    def samples(self, start: float, overhead: float, regions: list[int]) -> Samples:
        """The columns of a run that began at `start`. `regions` holds the region of each worker."""
        due = np.frombuffer(self.due) - start
        ended = np.frombuffer(self.ended) - start
        ended += overhead
        kind = np.frombuffer(self.kind, dtype=np.int8).astype(np.int64)
        worker = np.frombuffer(self.worker, dtype=np.int32).astype(np.int64)
        status = np.frombuffer(self.status, dtype=np.int16).astype(np.int64)
        return Samples(
            scheduled_at=due,
            sent_at=due,
            first_byte_at=self._first_bytes(status, ended),
            ended_at=ended,
            status=status,
            kind=kind,
            worker=worker,
            region=np.array([*regions, NOBODY], dtype=np.int64)[worker],
            sequence=np.arange(self.count),
            attempts=np.frombuffer(self.attempts, dtype=np.int8).astype(np.int64),
        )

    def _first_bytes(self, status: np.ndarray[tuple[int], np.dtype[np.int64]], ended: Floats) -> Floats:
        """Answers are small: first and last byte come together."""
        return ended if status.all() else np.where(status > 0, ended, np.nan)
