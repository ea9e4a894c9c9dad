"""The access log: entries are queued by the data path and formatted and written by a separate thread.

The data path only appends a tuple and must never wait for the log: if the queue is full, the entry is dropped and
counted. The thread sleeps until there are entries and then writes a few lines at a time: each write releases the GIL,
so the event loop waits at most for the formatting of those lines.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from random import Random

from balancer.config.schema.log import LogConfig
from balancer.errors import ForwardingError, NoRoute
from balancer.log.formats import Context, Entry, Format, has_failed
from balancer.log.journal import EntryCounts, EntryQueue
from balancer.log.lines import format_of
from balancer.log.output import LogOutput
from policies.clock import Clock

GATHERING = 0.05
"""Seconds for which the thread collects entries before it writes them."""

BATCH = 32
"""Lines per write: some 0.2 ms of formatting, for which the event loop may have to wait."""


@dataclass(slots=True)
class LogCounts(EntryCounts):
    """Entries since the start: `lost` because of a write error."""

    lost: int = 0


def wall_offset(clock: Clock) -> float:
    """Return the offset in seconds from the process's clock to Unix time; for log output only, not for decisions."""
    return time.time() - clock.now()  # noqa: TID251 - the one place


class AccessLog(EntryQueue):
    """Access log with its writer thread.

    `offset` is that of `wall_offset`.
    """

    def __init__(self, output: LogOutput, config: LogConfig, *, offset: float, rng: Random) -> None:
        super().__init__("access-log", config.queue)
        self.counts: LogCounts = LogCounts()
        self._output = output
        self._line = self._set(config)
        self._offset = offset
        self._draw = rng.random
        self._reopens = False
        self._successors: deque[tuple[LogOutput, Format]] = deque()  # outputs to switch to

    # --- called on the data path

    def takes(self, status: int, error: ForwardingError | None) -> bool:
        """Return whether a request with this status and error is to be logged."""
        if self._sample >= 1 or status >= 500 or (error is not None and not isinstance(error, NoRoute)):
            return True
        return self._draw() < self._sample

    # --- called outside the data path

    def start(self) -> None:
        """Start the writer thread."""
        self.thread.start()

    def reopen(self) -> None:
        """Reopen the file at the path, for log rotation."""
        self._reopens = True
        self._wakes.set()

    def apply(self, output: LogOutput, config: LogConfig) -> None:
        """Switch to another open output and other settings; queued entries are written to it too."""
        self._successors.append((output, self._set(config)))
        self._wakes.set()

    def _set(self, config: LogConfig) -> Format:
        """Apply settings but for the format of lines, which is returned."""
        line, self.chosen = format_of(config)
        self.logs_admin = config.admin
        self._sample = config.sample
        self._drawn_with = f"{config.sample:g}"
        self._limit = config.queue
        return line

    def stop(self) -> None:
        """Write the queued entries and close, unless that has begun."""
        if self._stops.is_set():
            return
        super().stop()
        if self.thread.ident is None:
            self._output.close()

    # --- the thread

    def _run(self) -> None:
        for _ in self._gathered(GATHERING):
            self._write_all()
            if self._reopens:
                self._reopens = False
                self._output.reopen()
            self._succeed()
        self._output.close()

    def _succeed(self) -> None:
        while self._successors:
            self._output.close()
            self._output, self._line = self._successors.popleft()

    def _write_all(self) -> None:
        while self._queue:
            entries = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            self._succeed()  # only now: entries added after `apply` must not go to the old output
            is_written = self._output.write("".join(map(self._format, entries)).encode("ascii"))
            if is_written:
                self.counts.written += len(entries)
            else:
                self.counts.lost += len(entries)

    def _format(self, entry: Entry) -> str:
        return self._line(entry, Context(self._offset, "1" if has_failed(entry) else self._drawn_with))
