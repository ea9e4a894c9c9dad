"""Emulated GC pauses of a worker.

During a pause no request is admitted or answered, and services in progress end that much later. The link in front of
the worker goes on.
"""

from __future__ import annotations

import math
import time
from functools import partial

from workers.faults import Faults
from workers.service import Slots
from workers.timer import DeadlineTimer


class GcPause:
    """Stops `slots` for the configured pauses. `until` is the end of the last one in `time.monotonic()` seconds."""

    def __init__(self, timer: DeadlineTimer, slots: Slots) -> None:
        self._timer = timer
        self._slots = slots
        self._length = self._every = 0.0
        self._turn = 0
        self.until = -math.inf

    def apply(self, faults: Faults) -> None:
        """Apply a new set of faults. Pauses of the same length and period keep their phase."""
        if (faults.pause, faults.every) == (self._length, self._every):
            return
        self._length, self._every = faults.pause, faults.every
        self._turn += 1  # makes callbacks scheduled for an earlier set do nothing
        if faults.pause:
            self._schedule(time.monotonic() + faults.after)

    async def over(self) -> float:
        """Wait until no pause is in progress; return the end of the last one, -inf if there was none."""
        while (until := self.until) > time.monotonic():
            await self._timer.wait_until(until)
        return until

    async def served(self, finish_at: float) -> float:
        """Wait for the end of a service due at `finish_at`; return the actual end, pauses included.

        Call it as soon as the service is admitted.
        """
        stopped = self._slots.stopped
        await self._timer.wait_until(finish_at)
        while self._slots.stopped > stopped:
            finish_at += self._slots.stopped - stopped
            stopped = self._slots.stopped
            await self._timer.wait_until(finish_at)
        return finish_at

    def _schedule(self, at: float) -> None:
        self._timer.schedule(at, partial(self._stop, at, self._turn))

    def _stop(self, at: float, turn: int) -> None:
        if turn != self._turn:
            return
        self._slots.stop(at, self._length)
        self.until = at + self._length
        if self._every:
            self._schedule(at + self._every)
