"""Deadline timer: many deadlines on one alarm, used by every wait of a worker.

Deadlines are absolute. A late callback is called at once and does not delay the following ones, so errors do not add
up; one ring serves everything that is due.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import count

from workers.alarm import Alarm, open_alarm


class DeadlineTimer:
    """Calls back at absolute times of `time.monotonic()`, in order of deadline, then of scheduling.

    (Not `loop.time()`: uvloop's is in whole milliseconds, and cached.) Belongs to one running loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_alarm: Callable[[asyncio.AbstractEventLoop, Callable[[], None]], Alarm] = open_alarm,
    ) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()  # breaks ties, so that equal deadlines keep their order
        self._armed_for = math.inf
        self._alarm = open_alarm(loop, self._ring)

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, at: float, callback: Callable[[], None]) -> None:
        """Call `callback` as soon as the clock reads `at`; from the loop, never from within this call."""
        heapq.heappush(self._heap, (at, next(self._order), callback))
        if at < self._armed_for:
            self._arm(at)

    async def wait_until(self, at: float) -> None:
        """Wait until `at`; return at once if that has passed."""
        if at > time.monotonic():
            woken: asyncio.Future[None] = self._loop.create_future()
            self.schedule(at, partial(_wake, woken))
            await woken

    def close(self) -> None:
        """Drop all callbacks and free the alarm."""
        self._heap.clear()
        self._alarm.close()

    def _arm(self, at: float) -> None:
        self._armed_for = at
        self._alarm.set(at if at < math.inf else None)

    def _ring(self) -> None:
        self._armed_for = -math.inf  # deadlines set by callbacks are armed once, at the end
        now = time.monotonic()  # read once: a steady flow of deadlines must not starve the loop's sockets
        while self._heap and self._heap[0][0] <= now:
            self._call(heapq.heappop(self._heap)[2])
        self._arm(self._heap[0][0] if self._heap else math.inf)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            context = {"message": "a deadline's callback failed", "exception": error}
            self._loop.call_exception_handler(context)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
