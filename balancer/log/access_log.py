"""The access log: entries are queued and formatted by the data path, and written by a separate thread.

The data path must never wait for the log: if the queue is full, the entry is dropped and counted. It formats `BLOCK`
entries at a time, so that the code of a format enters the processor's caches once for all of them. The thread formats
what is left when it wakes, and writes many blocks at once, without the GIL.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Final

from balancer.config.schema.log import LogConfig
from balancer.errors import ForwardingError, NoRoute
from balancer.log.formats import Context, Entry, Format, has_failed
from balancer.log.journal import EntryCounts, EntryQueue, taken
from balancer.log.lines import format_of
from balancer.log.output import LogOutput
from policies.clock import Clock

GATHERING = 0.05
"""Seconds for which the thread collects lines before it writes them."""

BLOCK: Final = 32
"""Entries that are formatted at once: in some 0.05 ms, in which the event loop does nothing else."""

MOST_BLOCKS: Final = 32
"""Blocks per write."""

_FORMATTING: Final = Lock()
"""Held while entries are formatted: formats keep texts of the last line. The data path does not wait for it."""


@dataclass(slots=True)
class LogCounts(EntryCounts):
    """Entries since the start: `lost` because of a write error."""

    lost: int = 0


def wall_offset(clock: Clock) -> float:
    """Return the offset in seconds from the process's clock to Unix time; for log output only, not for decisions."""
    return time.time() - clock.now()  # noqa: TID251 - the one place


class Lines:
    """Lines for one output in one format: `blocks` of `BLOCK` lines each, and behind them `entries`."""

    def __init__(self, output: LogOutput, line: Format, offset: float, sample: float) -> None:
        self.output = output
        self.line = line
        self.entries: list[Entry] = []
        self.blocks: list[bytes] = []
        self._is_sampled = sample < 1
        self._whole, self._drawn = Context(offset, "1"), Context(offset, f"{sample:g}")

    def pack(self) -> None:
        """Format entries to blocks, unless the thread is formatting."""
        if _FORMATTING.acquire(blocking=False):
            try:
                while len(self.entries) >= BLOCK:
                    self.blocks.append(self._formatted(taken(self.entries, BLOCK)))
            finally:
                _FORMATTING.release()

    def take(self) -> tuple[bytes, int]:
        """Take blocks, or entries that are in none, and their number of lines."""
        with _FORMATTING:
            blocks = taken(self.blocks, MOST_BLOCKS)
            if blocks:
                return b"".join(blocks), BLOCK * len(blocks)
            entries = taken(self.entries, BLOCK)
            return self._formatted(entries), len(entries)

    def _formatted(self, entries: list[Entry]) -> bytes:
        lines: list[str] = []
        for entry in entries:
            is_drawn = self._is_sampled and not has_failed(entry)
            lines.append(self.line(entry, self._drawn if is_drawn else self._whole))
        return "".join(lines).encode("ascii")


class AccessLog(EntryQueue):
    """Access log with its writer thread.

    `offset` is that of `wall_offset`.
    """

    def __init__(self, output: LogOutput, config: LogConfig, *, offset: float, rng: Random) -> None:
        self.counts = LogCounts()
        super().__init__("access-log", config.queue)
        self._offset = offset
        self._draw = rng.random
        self._reopens = False
        self._lines = self._set(output, config)
        self._all_lines = deque([self._lines])  # the last ones get further entries
        self._added = self._removed = 0

    # --- called on the data path

    def takes(self, status: int, error: ForwardingError | None) -> bool:
        """Return whether a request with this status and error is to be logged."""
        if self._sample >= 1 or status >= 500 or (error is not None and not isinstance(error, NoRoute)):
            return True
        return self._draw() < self._sample

    def add(self, entry: Entry) -> None:
        if self._added - self._removed >= self._limit:
            self.counts.dropped += 1
            return
        lines = self._lines
        lines.entries.append(entry)
        self._added += 1
        if len(lines.entries) >= BLOCK:
            lines.pack()
        if self._added - self._removed == 1:  # checked last: the thread may have taken all in between
            self._wakes.set()

    @property
    def waiting(self) -> int:
        return self._added - self._removed

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
        self._lines = self._set(output, config)
        self._all_lines.append(self._lines)
        self._wakes.set()

    def _set(self, output: LogOutput, config: LogConfig) -> Lines:
        """Apply settings but for the lines, which are returned."""
        line, self.chosen = format_of(config)
        self.logs_admin = config.admin
        self._sample = config.sample
        self._limit = config.queue
        return Lines(output, line, self._offset, config.sample)

    def stop(self) -> None:
        """Write the queued entries and close, unless that has begun."""
        if self._stops.is_set():
            return
        super().stop()
        if self.thread.ident is None:
            self._lines.output.close()

    # --- the thread

    def _run(self) -> None:
        for _ in self._gathered(GATHERING):
            while len(self._all_lines) > 1:
                self._write_all(self._all_lines[0])
                self._all_lines.popleft().output.close()
            self._write_all(self._all_lines[0])
            if self._reopens:
                self._reopens = False
                self._all_lines[0].output.reopen()
        self._lines.output.close()

    def _write_all(self, lines: Lines) -> None:
        while lines.blocks or lines.entries:
            data, number = lines.take()
            self._removed += number
            lost = lines.output.write(data)
            self.counts.written += number - lost
            self.counts.lost += lost
