"""The access log: entries from the data path to a file, by a thread of their own.

Rule of this file: the data path appends one tuple and goes on. It never waits for the log: when too many entries wait
already, one more is dropped and counted. All else, formatting included, happens in the thread, which sleeps until
there is something and then writes a few lines at a time: each write lets go of the interpreter, so the event loop
waits for no more than those lines.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from random import Random
from threading import Event, Thread

from balancer.errors import ForwardingError
from balancer.log.formats import Context, Entry, Format
from balancer.log.output import LogOutput
from policies.routing.clock import Clock

GATHERING = 0.05
"""Seconds for which the thread lets entries gather before it writes them."""

BATCH = 32
"""Lines to a write: some 0.2 ms of formatting, for which the event loop may have to wait."""

FLUSH_LIMIT = 2.0
"""Seconds that a stop waits for the last entries: the reader of a pipe may never take them."""


@dataclass(slots=True)
class LogCounts:
    """Entries since the start: `dropped` found the queue full, `lost` could not be written."""

    written: int = 0
    dropped: int = 0
    lost: int = 0


def wall_offset(clock: Clock) -> float:
    """Seconds from the unit's clock to Unix time. People read logs; nothing is ever decided by this."""
    return time.time() - clock.now()  # noqa: TID251 - the one place


class AccessLog:
    """Entries on their way to `output`. Start it, add to it from one thread, stop it.

    `sample` (0..1) is the share of requests that are logged; whatever did not end well always is. At most `limit`
    entries wait. `offset` is `wall_offset`'s; `policy` names the one in force at the start.
    """

    def __init__(
        self,
        output: LogOutput,
        line: Format,
        *,
        offset: float,
        policy: str,
        rng: Random,
        sample: float = 1.0,
        limit: int = 10_000,
        logs_control: bool = True,
    ) -> None:
        self.logs_control = logs_control
        self.counts = LogCounts()
        self._output = output
        self._line = line
        self._offset = offset
        self._policies = [(float("-inf"), policy)]  # each with the instant from which it was in force
        self._sample = sample
        self._drawn_with = f"{sample:g}"
        self._draw = rng.random
        self._limit = limit
        self._queue: deque[Entry] = deque()
        self._wakes = Event()
        self._stops = Event()
        self._reopens = False
        self._successors: deque[tuple[LogOutput, Format]] = deque()  # to go on with, where it was asked for
        self._thread = Thread(target=self._run, name="access-log", daemon=True)

    # --- called on the data path

    def takes(self, status: int, error: ForwardingError | None) -> bool:
        """Whether to make an entry of a request that ended like this."""
        return self._sample >= 1 or status >= 500 or error is not None or self._draw() < self._sample

    def add(self, entry: Entry) -> None:
        """Let it be written, or drop it."""
        queue = self._queue
        if len(queue) >= self._limit:
            self.counts.dropped += 1
            return
        queue.append(entry)
        if len(queue) == 1:  # asked afterwards: the thread may have emptied it in between
            self._wakes.set()

    # --- called now and then

    @property
    def waiting(self) -> int:
        """Entries that are not written yet."""
        return len(self._queue)

    def policy_changed(self, now: float, name: str) -> None:
        """Requests routed from now on were routed by this policy."""
        self._policies.append((now, name))

    def start(self) -> None:
        """Write from now on."""
        self._thread.start()

    def reopen(self) -> None:
        """Go on in the file that stands at the path now: the old one was moved away."""
        self._reopens = True
        self._wakes.set()

    def apply(
        self, output: LogOutput, line: Format, *, sample: float, limit: int, logs_control: bool
    ) -> None:
        """Go on in another output, which is open, and by other rules; what waits is written there, too."""
        self.logs_control = logs_control
        self._sample = sample
        self._drawn_with = f"{sample:g}"
        self._limit = limit
        self._successors.append((output, line))
        self._wakes.set()

    def retire(self) -> None:
        """Write what waits and close, while everything else goes on."""
        self._stops.set()
        self._wakes.set()

    def stop(self) -> None:
        """Write what waits, for at most `FLUSH_LIMIT` seconds, and close."""
        if self._stops.is_set():
            return
        self._stops.set()
        self._wakes.set()
        if self._thread.is_alive():
            self._thread.join(FLUSH_LIMIT)
        elif self._thread.ident is None:
            self._output.close()

    # --- the thread

    def _run(self) -> None:
        while not self._stops.is_set():
            self._wakes.wait()
            self._stops.wait(GATHERING)
            self._wakes.clear()
            self._write_all()
            if self._reopens:
                self._reopens = False
                self._output.reopen()
            self._succeed()
        self._write_all()
        self._succeed()
        self._output.close()

    def _succeed(self) -> None:
        while self._successors:
            self._output.close()
            self._output, self._line = self._successors.popleft()

    def _write_all(self) -> None:
        while self._queue:
            entries = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            self._succeed()  # afterwards: what was added after `apply` is not for the old output
            is_written = self._output.write("".join(map(self._format, entries)).encode("ascii"))
            if is_written:
                self.counts.written += len(entries)
            else:
                self.counts.lost += len(entries)

    def _format(self, entry: Entry) -> str:
        fault = entry.fault
        is_drawn = fault is None and entry.status < 500
        at = entry.routed_at if entry.endpoint is not None else entry.arrived[1]
        return self._line(
            entry, Context(self._offset, self._policy_at(at), self._drawn_with if is_drawn else "1")
        )

    def _policy_at(self, instant: float) -> str:
        """The one that was in force then; nearly always the last."""
        for since, name in reversed(self._policies):
            if since <= instant:
                return name
        raise AssertionError("the first is in force from the beginning of time")
