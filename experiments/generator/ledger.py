"""Columns of a run while it is being recorded.

A row exists from the instant at which its request is due, and its end is written exactly once. Instants go in as
seconds of the monotonic clock and come out as seconds from the start of the run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from experiments.run_data import Kind, Place, Samples, region_numbers
from experiments.stats.measures import percentile

UNKNOWN = -1


class Ledger:
    """One row per request, in order of due instants. `started_at` is the zero of every column."""

    def __init__(self, places: Sequence[Place], started_at: float) -> None:
        self._workers = {place.worker.encode(): index for index, place in enumerate(places)}
        self.places = tuple(places)
        self.started_at = started_at
        self.scheduled_at: list[float] = []
        self.sent_at: list[float] = []
        self.first_byte_at: list[float] = []
        self.ended_at: list[float] = []
        self.status: list[int] = []
        self.kind: list[int] = []
        self.worker: list[int] = []
        self.ended_order: list[int] = []
        self.failures: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.scheduled_at)

    def due(self, at: float) -> int:
        """Add a row for a request that is due at `at`; returns its number."""
        self.scheduled_at.append(at)
        self.sent_at.append(math.nan)
        self.first_byte_at.append(math.nan)
        self.ended_at.append(math.nan)
        self.status.append(0)
        self.kind.append(Kind.UNFINISHED)
        self.worker.append(UNKNOWN)
        return len(self.scheduled_at) - 1

    def answered(self, number: int, at: float, status: int, worker: bytes) -> None:
        self.first_byte_at[number] = at
        self.status[number] = status
        self.worker[number] = self._workers.get(worker, UNKNOWN)

    def ended(self, number: int, at: float, kind: Kind) -> None:
        self.ended_at[number] = at
        self.kind[number] = kind
        self.ended_order.append(number)
        if kind is not Kind.OK:
            self.failures[kind.name.lower()] += 1

    def close(self, at: float) -> None:
        """Close open rows as unfinished at `at`: the requests were sent, so they count."""
        for number, ended_at in enumerate(self.ended_at):
            if math.isnan(ended_at):
                self.ended(number, at, Kind.UNFINISHED)

    @property
    def in_flight(self) -> int:
        return len(self) - len(self.ended_order)

    def recent(self, now: float) -> tuple[float, float, float]:
        """Requests that ended in the last second: their number, and latency p50 and p95 in seconds."""
        latency = []
        for number in reversed(self.ended_order):
            if self.ended_at[number] < now - 1.0:
                break
            latency.append(self.ended_at[number] - self.scheduled_at[number])
        values = np.array(latency)
        return float(len(latency)), percentile(values, 50), percentile(values, 95)

    def recent_lag(self) -> float:
        """Maximum lag in seconds among the last hundred requests that were due."""
        late = [
            sent - due
            for sent, due in zip(self.sent_at[-100:], self.scheduled_at[-100:], strict=True)
            if sent == sent  # false for nan: not sent
        ]
        return max(late, default=0.0)

    def samples(self) -> Samples:
        """The columns as arrays, with instants in seconds from the start of the run."""
        worker = np.array(self.worker, dtype=np.int64)
        return Samples(
            scheduled_at=np.array(self.scheduled_at) - self.started_at,
            sent_at=np.array(self.sent_at) - self.started_at,
            first_byte_at=np.array(self.first_byte_at) - self.started_at,
            ended_at=np.array(self.ended_at) - self.started_at,
            status=np.array(self.status, dtype=np.int64),
            kind=np.array(self.kind, dtype=np.int64),
            worker=worker,
            region=region_numbers(self.places)[worker],
            sequence=np.arange(len(worker), dtype=np.int64),
            attempts=np.zeros(len(worker), dtype=np.int64),
        )
