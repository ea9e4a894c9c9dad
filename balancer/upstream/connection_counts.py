"""What has happened to the connections of one endpoint, counted.

Rule of this file: totals since the start, which only grow. What is counted for each request is a number and no more.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from balancer.upstream.connect_phases import Phases

WORKER: Final = "worker"
US: Final = "us"
ERROR: Final = "error"
"""Who ended a connection; an error is a fault of the network or of what the worker said."""

AGES: Final = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: bounds of the histogram of idle ages; one more class is for what is longer."""


def ended_by(error: Exception | None) -> str:
    """Who has, where the transport says that the connection is lost and with which error."""
    return ERROR if isinstance(error, OSError) and not isinstance(error, ConnectionError) else WORKER


@dataclass(slots=True)
class PoolCounts:
    """Connections opened, leased again (`reused`), not opened (`failed`), not even tried because others had just failed
    (`spared`), and `closed`; of those, by the worker and by an error, the others by us. `lost_idle` were closed by the
    worker while they served nobody, `lost_ages` says at which age; `died` were leased and broke before a byte of the
    response: the race between its closing and our request. `cold`: times that somebody had to wait for a connection."""

    opened: int = 0
    reused: int = 0
    cold: int = 0
    failed: int = 0
    spared: int = 0
    closed: int = 0
    closed_by_worker: int = 0
    closed_by_error: int = 0
    lost_idle: int = 0
    died: int = 0
    heartbeats: int = 0
    heartbeats_failed: int = 0
    lost_ages: list[int] = field(default_factory=lambda: [0] * (len(AGES) + 1))
    lost_seconds: float = 0.0
    namelookup: float = 0.0
    connect: float = 0.0
    appconnect: float = 0.0

    @property
    def closed_by_us(self) -> int:
        """The rest."""
        return self.closed - self.closed_by_worker - self.closed_by_error

    def count_closed(self, by: str) -> None:
        """A connection has ended."""
        self.closed += 1
        if by == WORKER:
            self.closed_by_worker += 1
        elif by == ERROR:
            self.closed_by_error += 1

    def count_lost(self, age: float) -> None:
        """The worker has closed one that was idle for so many seconds."""
        self.lost_idle += 1
        self.lost_ages[bisect_left(AGES, age)] += 1
        self.lost_seconds += age

    def count_opened(self, phases: Phases) -> None:
        """One stands; the phases are summed up, in seconds."""
        self.opened += 1
        self.namelookup += phases.namelookup
        self.connect += phases.connect
        self.appconnect += phases.appconnect
