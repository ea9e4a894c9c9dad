"""The memory that the processes of one unit share: what each has in flight, and what it has measured.

Rule of this file: each process writes its own page and reads the others'; there is no lock. A word of eight bytes is
never seen half written, and no two words have to be of the same instant: a mean that is read beside an older count is
still a mean. A page is found again by `generation`, which changes whenever its rows are given anew.

    page    generation, rows in use, clients + 1,
            milliseconds of grace                 HEADER words
            the key of the endpoint in each row   `capacity` words, 0 where the row is free
            requests in flight                    `capacity` words
            seven numbers of latency              `capacity` words of each
"""

from __future__ import annotations

import mmap
from hashlib import blake2b

from policies.stats.shared_latency import SharedLatency

CAPACITY = 4096
"""Endpoints that a page has rows for; 288 KiB of addresses, of which what is used becomes memory."""

HEADER = 8
_GENERATION, _ROWS, _CLIENTS, _GRACE = 0, 1, 2, 3
NUMBERS = len(SharedLatency._fields)
WORD = 8


def key_of(endpoint_id: str) -> int:
    """The same in every process; never 0. Two of a million ids share one with a probability of 10⁻⁷."""
    digest = blake2b(endpoint_id.encode(), digest_size=WORD).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def page_size(capacity: int) -> int:
    """Bytes of one page, whole pages of the processor's memory so that no two processes share a line of its cache."""
    size = (HEADER + capacity * (2 + NUMBERS)) * WORD
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class Page:
    """What one process tells the others."""

    def __init__(self, memory: memoryview, capacity: int) -> None:
        words, numbers = memory.cast("q"), memory.cast("d")
        self._header = words[:HEADER]
        self._keys = words[HEADER : HEADER + capacity]
        self.in_flight = words[HEADER + capacity : HEADER + 2 * capacity]
        first = HEADER + 2 * capacity
        self._latency = [numbers[first + at * capacity :][:capacity] for at in range(NUMBERS)]
        self.capacity = capacity
        self._left: list[int] = []  # rows that its own process has left

    @property
    def generation(self) -> int:
        """A number that changes whenever a row comes to mean another endpoint."""
        return self._header[_GENERATION]

    @property
    def clients(self) -> int | None:
        """Connections from clients; None of a process that accepts nobody."""
        clients = self._header[_CLIENTS]
        return clients - 1 if clients else None

    @clients.setter
    def clients(self, clients: int | None) -> None:
        self._header[_CLIENTS] = 0 if clients is None else clients + 1

    @property
    def grace(self) -> float:
        """Seconds that the process takes at most to end."""
        return self._header[_GRACE] / 1000

    @grace.setter
    def grace(self, seconds: float) -> None:
        self._header[_GRACE] = int(seconds * 1000)

    # --- by its own process

    def enter(self, key: int) -> int | None:
        """A row for the endpoint with this key; None where there is none left."""
        rows = self._header[_ROWS]
        row = self._free(rows)
        if row is None:
            return None
        self.in_flight[row] = 0
        self.tell(row, SharedLatency())
        self._keys[row] = key
        self._header[_ROWS] = max(rows, row + 1)
        self._header[_GENERATION] += 1
        return row

    def _free(self, rows: int) -> int | None:
        while self._left:
            row = self._left.pop()
            if row < rows and not self._keys[row]:
                return row
        return rows if rows < self.capacity else None

    def leave(self, row: int) -> None:
        """The endpoint of this row is gone."""
        self._keys[row] = self.in_flight[row] = 0
        self._left.append(row)
        self._header[_GENERATION] += 1

    def tell(self, row: int, evidence: SharedLatency) -> None:
        """What was measured here; sums are written as means, which may be read beside an older count."""
        successes = evidence.successes or 1.0
        numbers = evidence._replace(latency=evidence.latency / successes, ahead=evidence.ahead / successes)
        for column, number in zip(self._latency, numbers, strict=True):
            column[row] = number

    # --- by the others

    def rows(self) -> dict[int, int]:
        """Key -> row, of all rows that are in use."""
        keys = self._keys[: self._header[_ROWS]].tolist()
        return {key: row for row, key in enumerate(keys) if key}

    def told(self, row: int) -> SharedLatency:
        """What its process has measured."""
        read = SharedLatency(*(column[row] for column in self._latency))
        successes = read.successes
        return read._replace(latency=read.latency * successes, ahead=read.ahead * successes)

    # --- by the supervisor

    def clear(self) -> None:
        """Its process is dead: what it had in flight is not."""
        rows = self._header[_ROWS]
        self._header[_GENERATION] += 1
        for row in range(rows):
            self._keys[row] = self.in_flight[row] = 0
            self._latency[0][row] = 0.0
            self._latency[SharedLatency._fields.index("failures")][row] = 0.0
        self._header[_ROWS] = self._header[_CLIENTS] = 0

    @property
    def total_in_flight(self) -> int:
        """Requests that its process has at all endpoints."""
        return sum(self.in_flight[: self._header[_ROWS]].tolist())


class SharedCounters:
    """One page for each process. `memory` is shared by those who are forked after it was made."""

    def __init__(self, processes: int, capacity: int = CAPACITY) -> None:
        size = page_size(capacity)
        self._memory = mmap.mmap(-1, processes * size)
        whole = memoryview(self._memory)
        self.pages = [Page(whole[at * size : (at + 1) * size], capacity) for at in range(processes)]
