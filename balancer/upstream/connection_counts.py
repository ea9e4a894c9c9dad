"""Counters of one endpoint's connections: opened, reused, failed, closed, and why; and snapshots of single ones.

They are totals since the start and never decrease. Counting on the request path is limited to integer increments.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from balancer.upstream.dial.phases import DialTimes

WORKER: Final = "worker"
US: Final = "us"
ERROR: Final = "error"
"""Which side closed a connection. `ERROR` is a network fault or a malformed response."""

AGES: Final = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Bounds, in seconds, of the histogram of idle times that ended with a close by the worker; one more class holds longer
ones."""


def ended_by(error: Exception | None) -> str:
    """Which side closed a connection, from the error that the transport reports to `connection_lost`."""
    return ERROR if isinstance(error, OSError) and not isinstance(error, ConnectionError) else WORKER


@dataclass(slots=True)
class PoolCounts:
    """Connection counters of one pool.

    `opened`, `failed` and `closed` count connections; `reused` counts leases of an idle one. `spared`: connects not
    attempted because of the backoff. `closed_by_worker` and `closed_by_error` are parts of `closed`. `lost_idle`:
    closed by the worker while idle, with idle times in `lost_ages` and their sum in `lost_seconds`. `died`: reused, and
    closed before any byte of the response, the race between the worker's close and a request. `cold`: leases that had
    to wait for a connection. `namelookup`, `connect` and `appconnect` are sums of connect phases in seconds.
    """

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
    def closed_by_balancer(self) -> int:
        """Connections closed by the balancer: all that neither the worker nor an error closed."""
        return self.closed - self.closed_by_worker - self.closed_by_error

    def count_closed(self, by: str) -> None:
        """Count a closed connection by the side that closed it."""
        self.closed += 1
        if by == WORKER:
            self.closed_by_worker += 1
        elif by == ERROR:
            self.closed_by_error += 1

    def count_lost(self, age: float) -> None:
        """Count a connection that the worker closed after `age` idle seconds."""
        self.lost_idle += 1
        self.lost_ages[bisect_left(AGES, age)] += 1
        self.lost_seconds += age

    def count_opened(self, phases: DialTimes) -> None:
        """Count an opened connection and add up its connect phases, in seconds."""
        self.opened += 1
        self.namelookup += phases.namelookup
        self.connect += phases.connect
        self.appconnect += phases.appconnect


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """State of one connection for the status output, the same for all transports. `name`: local address and port;
    `opened_at` and `idle_since` in seconds, `idle_since` None while in use; `requests`: requests begun on it, or
    completed where it serves one at a time; `streams`: requests in flight."""

    name: str
    opened_at: float
    idle_since: float | None
    requests: int
    streams: int
    phases: DialTimes


def local_address(transport: asyncio.BaseTransport) -> str:
    """Local address and port of a transport, as `address:port`."""
    return ":".join(map(str, transport.get_extra_info("sockname", ("", ""))[:2]))
