"""The access log: lines are formatted and queued by the data path and written by a separate thread.

The data path must never wait for the log: if the queue is full, the entry is dropped and counted. The thread sleeps
until there are lines, gathers more, and writes many at once, without the GIL. It does not format them: then the event
loop would wait for the GIL, and both would for each other's caches.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from random import Random

from balancer.config.schema.log import LogConfig
from balancer.errors import ForwardingError, NoRoute
from balancer.log.formats import Context, Entry, Format, has_failed
from balancer.log.journal import EntryCounts, EntryQueue, taken
from balancer.log.lines import format_of
from balancer.log.output import LogOutput
from policies.clock import Clock

GATHERING = 0.05
"""Seconds for which the thread collects lines before it writes them."""

BATCH = 512
"""Lines per write: some 0.1 ms to join them, for which the event loop may have to wait."""


@dataclass(slots=True)
class LogCounts(EntryCounts):
    """Entries since the start: `lost` because of a write error."""

    lost: int = 0


def wall_offset(clock: Clock) -> float:
    """Return the offset in seconds from the process's clock to Unix time; for log output only, not for decisions."""
    return time.time() - clock.now()  # noqa: TID251 - the one place


class AccessLog(EntryQueue[str]):
    """Access log with its writer thread.

    `offset` is that of `wall_offset`.
    """

    def __init__(self, output: LogOutput, config: LogConfig, *, offset: float, rng: Random) -> None:
        self.counts = LogCounts()
        super().__init__("access-log", config.queue, self.counts)
        self._offset = offset
        self._draw = rng.random
        self._reopens = False
        self._line = self._set(config)
        self._outputs = deque([(output, self._queue)])  # with their lines; the last one gets further ones

    # --- called on the data path

    def takes(self, status: int, error: ForwardingError | None) -> bool:
        """Return whether a request with this status and error is to be logged."""
        if self._sample >= 1 or status >= 500 or (error is not None and not isinstance(error, NoRoute)):
            return True
        return self._draw() < self._sample

    def _item(self, entry: Entry) -> str:
        return self._line(entry, self._whole if self._sample >= 1 or has_failed(entry) else self._drawn)

    # --- called outside the data path

    def start(self) -> None:
        """Start the writer thread."""
        self.thread.start()

    def reopen(self) -> None:
        """Reopen the file at the path, for log rotation."""
        self._reopens = True
        self._wakes.set()

    def apply(self, output: LogOutput, config: LogConfig) -> None:
        """Switch to another open output and other settings, for entries from now on."""
        self._line = self._set(config)
        self._queue = []
        self._outputs.append((output, self._queue))
        self._wakes.set()

    def _set(self, config: LogConfig) -> Format:
        """Apply settings but for the format of lines, which is returned."""
        line, self.chosen = format_of(config)
        self.logs_admin = config.admin
        self._sample = config.sample
        self._whole, self._drawn = Context(self._offset, "1"), Context(self._offset, f"{config.sample:g}")
        self._limit = config.queue
        return line

    def stop(self) -> None:
        """Write the queued entries and close, unless that has begun."""
        if self._stops.is_set():
            return
        super().stop()
        if self.thread.ident is None:
            self._outputs[0][0].close()

    @property
    def waiting(self) -> int:
        return sum(len(lines) for _, lines in self._outputs)

    # --- the thread

    def _run(self) -> None:
        for _ in self._gathered(GATHERING):
            while len(self._outputs) > 1:
                output, lines = self._outputs[0]
                self._write_all(output, lines)
                self._outputs.popleft()
                output.close()
            output, lines = self._outputs[0]
            self._write_all(output, lines)
            if self._reopens:
                self._reopens = False
                output.reopen()
        self._outputs[-1][0].close()

    def _write_all(self, output: LogOutput, lines: list[str]) -> None:
        while lines:
            batch = taken(lines, BATCH)
            if output.write("".join(batch).encode("ascii")):
                self.counts.written += len(batch)
            else:
                self.counts.lost += len(batch)
