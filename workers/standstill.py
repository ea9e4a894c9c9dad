"""A worker that stands still for moments, as a collection of garbage makes it.

Rule of this file: while it stands, nobody is let in, nobody is answered, and whatever is being served ends that much
later. The link in front of it goes on: a network knows nothing of collections.
"""

from __future__ import annotations

import math
import time
from functools import partial

from workers.faults import Faults
from workers.service import Slots
from workers.timer import DeadlineTimer


class Standstill:
    """Stops `slots` as the faults say. `until` is the end of the last stop, in seconds of `time.monotonic()`."""

    def __init__(self, timer: DeadlineTimer, slots: Slots) -> None:
        self._timer = timer
        self._slots = slots
        self._length = self._every = 0.0
        self._turn = 0
        self.until = -math.inf

    def obey(self, faults: Faults) -> None:
        """Others are in force now. Pauses of the same length and period go on in their phase."""
        if (faults.pause, faults.every) == (self._length, self._every):
            return
        self._length, self._every = faults.pause, faults.every
        self._turn += 1  # what was scheduled for an earlier set finds another number, and does nothing
        if faults.pause:
            self._schedule(time.monotonic() + faults.after)

    async def over(self) -> float:
        """Return once it does not stand still; the instant at which it moved again, -inf if it never stood."""
        while (until := self.until) > time.monotonic():
            await self._timer.wait_until(until)
        return until

    async def served(self, finish_at: float) -> float:
        """Return when a service is over that would end at `finish_at`; the instant at which it was, stops included.

        To be called as soon as the service is let in.
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
