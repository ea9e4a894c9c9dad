"""Sweep: enforces all timeouts of the data path periodically.

There is no timer per request. A timeout of seconds may fire one `SWEEP_PERIOD` late; setting and cancelling a timer
for each of ten thousand requests a second would cost more than forwarding some of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from email.utils import formatdate

from balancer.process_context import ProcessContext
from policies.clock import SWEEP_PERIOD

SLICE = 20
"""Connections checked per loop iteration: half a millisecond, if all of them have to be refused."""


def http_date() -> str:
    """Return the current time in the format of the Date field (RFC 9110 § 5.6.7)."""
    return formatdate(usegmt=True)


class Sweep:
    """Checks every client connection each `SWEEP_PERIOD`.

    `also` is called with the time at the end of each sweep; `date` returns the value of the Date field.
    """

    def __init__(
        self, process: ProcessContext, also: Callable[[float], None], date: Callable[[], str] = http_date
    ) -> None:
        self._process = process
        self._also = also
        self._date = date
        self._handle: asyncio.TimerHandle | None = None
        self._looking: Iterator[None] | None = None  # a sweep in progress

    def start(self) -> None:
        self._note_date()
        self._handle = asyncio.get_running_loop().call_later(SWEEP_PERIOD, self.run)

    def stop(self) -> None:
        self._looking = None
        if self._handle is not None:
            self._handle.cancel()

    def run(self) -> None:
        """Start a sweep in slices, and schedule the next one in a `SWEEP_PERIOD`."""
        self.start()
        if self._looking is None:
            self._looking = self.slices(self._process.now())
            self._look_on()

    def _look_on(self) -> None:
        """Run one slice; the next one is deferred to the next loop iteration."""
        if self._looking is None:
            return
        try:
            next(self._looking)
        except StopIteration:
            self._looking = None
        except Exception:
            self._looking = None  # or there would be no sweep any more
            raise
        else:
            asyncio.get_running_loop().call_soon(self._look_on)

    def _note_date(self) -> None:
        """Keep the Date field of the present second, which costs a response nothing."""
        self._process.date_line = b"Date: %b\r\n" % self._date().encode()

    def slices(self, now: float) -> Iterator[None]:
        """Sweep; yields after every `SLICE` connections: a thousand refusals in one go would block the loop for 20
        ms."""
        process = self._process
        process.cached_time = now
        self._note_date()
        process.abort_reset()
        for number, downstream in enumerate(list(process.downstreams), 1):
            if downstream in process.downstreams:  # it may have closed during a pause
                try:
                    downstream.check(now)
                except Exception as error:  # a defect costs this connection, not the timeouts of all others
                    context = {"message": "checking a client connection failed", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)
                    downstream.abort()
            if number % SLICE == 0:
                yield
        self._also(now)
