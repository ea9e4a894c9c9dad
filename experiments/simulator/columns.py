"""Results of all requests of a run, as the client sees them.

Arrays are allocated once, as in the load generator's ledger; each row is completed once.
"""

from __future__ import annotations

from struct import pack
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.run_data import Floats, Ints, Samples

NO_WORKER: Final = -1
BATCH: Final = 8192
"""Number of results that are buffered before they are written to the arrays."""

SHIFT: Final = 20
WORKERS: Final = (1 << 20) - 1
"""Request number and worker number share one integer in the buffer: 20 bits for the worker, so at most 2^20 workers."""


Codes: TypeAlias = NDArray[np.int32]


def code_of(kind: int, status: int, attempts: int) -> int:
    """Pack kind (3 bits), attempts (16; a request may try every worker) and status (10) into one integer."""
    return kind | min(attempts, 0xFFFF) << 3 | status << 19


OK: Final = code_of(0, 200, 1)
"""Code of nearly all requests: success at the first attempt."""


class Columns:
    """Rows of `count` requests.

    Results are buffered in the order in which they arrive and written to the arrays in batches, which is several times
    cheaper than single writes. Codes other than `OK` are written at once.
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
        """Append the instant at which the next request of a closed loop is due."""
        self._due.append(at)

    def put(self, number: int, at: float, worker: int) -> None:
        """Record the end of a request; `worker` is the number of the worker that answered, or `NO_WORKER`."""
        self._keys.append((number << SHIFT) + worker + 1)
        self._ends.append(at)
        if len(self._ends) == BATCH:
            self.flush()

    def put_code(self, number: int, code: int) -> None:
        """Record a result other than `OK`, packed by `code_of`."""
        self.codes[number] = code

    def flush(self) -> None:
        """Write the buffered results to the arrays."""
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
        """Outcome of each request as `Kind`."""
        return np.asarray(self.codes & 7, dtype=np.int64)

    @property
    def attempts(self) -> Ints:
        """Number of attempts of each request."""
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
