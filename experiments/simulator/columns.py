"""Results of all requests of a run, as the client sees them.

Arrays are allocated once, as in the load generator's ledger; each row is completed once.
"""

from __future__ import annotations

from struct import pack
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.run_data import Floats, Ints, Kind, Samples

NO_WORKER: Final = -1
BATCH: Final = 4096
"""Number of consecutive requests whose results are buffered before they are written to the arrays."""

Codes: TypeAlias = NDArray[np.int32]


def code_of(kind: int, status: int, attempts: int) -> int:
    """Pack kind (3 bits), attempts (16; a request may try every worker) and status (10) into one integer."""
    return kind | min(attempts, 0xFFFF) << 3 | status << 19


OK: Final = code_of(Kind.OK, 200, 1)
"""Code of nearly all requests: success at the first attempt."""


class Columns:
    """Rows of `count` requests.

    Results of the requests from `_first` on are buffered in lists and written to the arrays together, which is several
    times cheaper than single writes; those of earlier requests, which are few, are written at once.
    """

    def __init__(self, count: int, instants: Floats | None, start: float) -> None:
        self.count = count
        self._instants = instants
        self.due: Floats = np.zeros(count) if instants is None else instants + start
        self.ended: Floats = np.zeros(count)
        self.codes: Codes = np.full(count, OK, dtype=np.int32)
        self.workers: Codes = np.full(count, NO_WORKER, dtype=np.int32)
        self._first = 0
        self._ends: list[float] = []
        self._places: list[int] = []

    def put(self, number: int, at: float, worker: int) -> None:
        """Record the end of a request; `worker` is the number of the worker that answered, or `NO_WORKER`."""
        index = number - self._first
        if index >= len(self._ends):
            self.flush()
            self._first = number - number % BATCH
            self._ends, self._places = [0.0] * BATCH, [NO_WORKER] * BATCH
            index = number - self._first
        if index < 0:
            self.ended[number] = at
            self.workers[number] = worker
        else:
            self._ends[index] = at
            self._places[index] = worker

    def flush(self) -> None:
        """Write the buffered results to the arrays."""
        size = min(len(self._ends), self.count - self._first)
        rows = slice(self._first, self._first + size)
        # Packed first, which takes a third of numpy's time for a list.
        self.ended[rows] = np.frombuffer(pack(f"{size}d", *self._ends[:size]))
        self.workers[rows] = np.frombuffer(pack(f"{size}i", *self._places[:size]), dtype=np.int32)

    @property
    def kinds(self) -> Ints:
        """Outcome of each request as `Kind`."""
        return np.asarray(self.codes & 7, dtype=np.int64)

    @property
    def attempts(self) -> Ints:
        return np.asarray((self.codes >> 3) & 0xFFFF, dtype=np.int64)

    @property
    def statuses(self) -> Ints:
        """Status of each answer; 0 without one."""
        return np.asarray(self.codes >> 19, dtype=np.int64)

    @property
    def latencies(self) -> Floats:
        """Seconds from the due instant to the end."""
        return np.asarray(self.ended - self.due)

    def samples(self, start: float, overhead: float, regions: Ints) -> Samples:
        """Samples of a run that began at `start`. `regions` holds the region of each worker, and of none."""
        due = self.due - start if self._instants is None else self._instants  # exact to the last bit
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
            region=regions[worker],
            sequence=np.arange(self.count),
            attempts=self.attempts,
        )
