"""All timeouts of the data path, kept by one coarse sweep.

Rule of this file: no timer per request. A deadline of seconds may be late by one `PERIOD`; setting and cancelling
a timer for each of ten thousand requests a second would cost more than forwarding some of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate

from balancer.departures import departed
from balancer.unit import Unit

PERIOD = 0.25
"""Seconds between sweeps: a tenth of the shortest default timeout."""

TICKS_PER_SECOND = round(1 / PERIOD)


class Sweep:
    """Looks at every connection and pool each `PERIOD`; `also` is called with the time at the end of each."""

    def __init__(self, unit: Unit, also: Callable[[float], None]) -> None:
        self._unit = unit
        self._also = also
        self._handle: asyncio.TimerHandle | None = None
        self._ticks = 0

    def start(self) -> None:
        """Sweep from now on."""
        self._handle = asyncio.get_running_loop().call_later(PERIOD, self._run)

    def stop(self) -> None:
        """Sweep no more."""
        if self._handle is not None:
            self._handle.cancel()

    def _run(self) -> None:
        self.start()
        self.sweep(self._unit.now())

    def sweep(self, now: float) -> None:
        """Look once, as if it were `now`."""
        unit = self._unit
        unit.coarse_now = now
        unit.date_line = b"Date: %b\r\n" % formatdate(usegmt=True).encode()
        for downstream in departed(unit.downstreams):
            downstream.abort()
        for downstream in list(unit.downstreams):
            downstream.check(now)
        unit.tunnels.check(now)
        unit.pools.prune(now)
        self._ticks += 1
        if self._ticks % TICKS_PER_SECOND == 0:
            unit.router.tick()
        self._also(now)
