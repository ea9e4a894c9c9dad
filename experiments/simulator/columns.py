"""What becomes of every request, as its client sees it.

Rule of this file: as the generator's ledger, in arrays made once: a row exists from the start, and its end is written
once.
"""

from __future__ import annotations

from struct import pack
from typing import Final

import numpy as np
from numpy.typing import NDArray

from experiments.load.samples import Floats, Ints, Samples

NO_WORKER: Final = -1
BATCH: Final = 8192
"""Ends that are put down before they are brought to their rows."""

SHIFT: Final = 20
WORKERS: Final = (1 << 20) - 1
"""A request's number and its worker's are one number while they are put down: 2^20 workers are enough for anybody."""


Codes = NDArray[np.int32]


def code_of(kind: int, status: int, attempts: int) -> int:
    """Three numbers in one: it is carried around as one."""
    return kind | attempts << 3 | status << 9


OK: Final = code_of(0, 200, 1)
"""What nearly all come to."""


class Columns:
    """Rows of `count` requests.

    Ends are put down in the order in which they come, and brought to their rows by the thousand: that is several times
    cheaper than to write each into arrays. What is not as usual is written at once.
    """

    def __init__(self, count: int, instants: Floats | None, start: float) -> None:
        self.count = count
        self._instants = instants
        self.due: Floats = np.zeros(count) if instants is None else instants + start
        self.ended: Floats = np.zeros(count)
        self.codes: Codes = np.full(count, OK, dtype=np.int32)
        self.workers: Codes = np.full(count, NO_WORKER, dtype=np.int32)
        self._keys: list[int] = []
        self._ends: list[float] = []
        self._due: list[float] = []
        self._due_from = 0

    def put_due(self, at: float) -> None:
        """The next request of a closed loop is due."""
        self._due.append(at)

    def put(self, number: int, at: float, worker: int) -> None:
        """A request has ended; `worker` is whose answer it was, or `NO_WORKER`."""
        self._keys.append((number << SHIFT) + worker + 1)
        self._ends.append(at)
        if len(self._ends) == BATCH:
            self.flush()

    def put_code(self, number: int, code: int) -> None:
        """It did not come to `OK`, but to this, as `code_of` says."""
        self.codes[number] = code

    def flush(self) -> None:
        """Bring to their rows what was put down."""
        keys = np.frombuffer(pack(f"{len(self._keys)}q", *self._keys), dtype=np.int64)
        rows = keys >> SHIFT
        self.ended[rows] = np.frombuffer(pack(f"{len(self._ends)}d", *self._ends))
        self.workers[rows] = (keys & WORKERS) - 1
        self._keys.clear()
        self._ends.clear()
        if self._due:
            until = self._due_from + len(self._due)
            self.due[self._due_from : until] = self._due
            self._due_from = until
            self._due.clear()

    @property
    def kinds(self) -> Ints:
        """`Kind` of each."""
        return np.asarray(self.codes & 7, dtype=np.int64)

    @property
    def attempts(self) -> Ints:
        """How many attempts each took."""
        return np.asarray((self.codes >> 3) & 63, dtype=np.int64)

    @property
    def statuses(self) -> Ints:
        """The status that each was answered with; 0: none."""
        return np.asarray(self.codes >> 9, dtype=np.int64)

    @property
    def latencies(self) -> Floats:
        """Seconds from being due to the end."""
        return np.asarray(self.ended - self.due)

    def samples(self, start: float, overhead: float, regions: list[int]) -> Samples:
        """The columns of a run that began at `start`. `regions` holds the region of each worker."""
        due = self.due - start if self._instants is None else self._instants  # to the last bit
        ended = self.ended - (start - overhead)
        worker, status = self.workers.astype(np.int64), self.statuses
        return Samples(
            scheduled_at=due,
            sent_at=due,
            first_byte_at=ended if status.all() else np.where(status > 0, ended, np.nan),
            ended_at=ended,
            status=status,
            kind=self.kinds,
            worker=worker,
            region=np.array([*regions, NO_WORKER], dtype=np.int64)[worker],
            sequence=np.arange(self.count),
            attempts=self.attempts,
        )
