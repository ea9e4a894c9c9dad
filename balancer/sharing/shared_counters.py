"""Shared memory of the sibling processes: requests in flight and latency measurements of each.

Each process writes only its own page and reads the others'; there is no lock. A word of eight bytes is never torn, and
no two words need to be of the same instant: a mean that is read beside an older count is still a mean. `generation`
changes whenever rows are reassigned; readers then look up all rows of the page again.

    page    generation, rows in use, clients + 1,
            milliseconds of grace, panic,
            key of the failing policy,
            reloads begun, and ended              HEADER words
            the key of the endpoint in each row   `capacity` words, 0 where the row is free
            requests in flight                    `capacity` words
            seven numbers of latency              `capacity` words of each
            condition, by number                  `capacity` words
"""

from __future__ import annotations

import mmap
from hashlib import blake2b

from policies.stats.shared_latency import SharedLatency

CAPACITY = 4096
"""Rows for endpoints in a page; 320 KiB of address space, of which only used pages take memory."""

HEADER = 8
_GENERATION, _ROWS, _CLIENTS, _GRACE, _PANIC, _FAILING_POLICY, _RELOADS = range(7)
NUMBERS = len(SharedLatency._fields)
WORD = 8


def key_of(endpoint_id: str, cluster: str = "") -> int:
    """Return the key of an endpoint of a cluster, the same in every process and never 0. Among a million ids two
    collide with a probability of 10⁻⁷.
    """
    name = f"{cluster}/{endpoint_id}" if cluster else endpoint_id
    digest = blake2b(name.encode(), digest_size=WORD).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def page_size(capacity: int) -> int:
    """Return the bytes of one page, rounded up to memory pages so that no two processes share a cache line."""
    size = (HEADER + capacity * (3 + NUMBERS)) * WORD
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class Page:
    """Page of one process in the shared memory."""

    def __init__(self, memory: memoryview, capacity: int) -> None:
        words, numbers = memory.cast("q"), memory.cast("d")
        self._header = words[:HEADER]
        self.reloads = self._header[_RELOADS:]
        """Numbers of reloads that have begun, and ended, in all processes that have had the page."""
        self._keys = words[HEADER : HEADER + capacity]
        self.in_flight = words[HEADER + capacity : HEADER + 2 * capacity]
        first = HEADER + 2 * capacity
        self._latency = [numbers[first + at * capacity :][:capacity] for at in range(NUMBERS)]
        last = first + NUMBERS * capacity
        self.conditions = words[last : last + capacity]
        self.capacity = capacity
        self._left: list[int] = []  # rows freed by its own process

    @property
    def generation(self) -> int:
        """Generation number; it changes whenever a row is reassigned to another endpoint."""
        return self._header[_GENERATION]

    @property
    def clients(self) -> int | None:
        """Client connections; None of a process that does not accept."""
        clients = self._header[_CLIENTS]
        return clients - 1 if clients else None

    @clients.setter
    def clients(self, clients: int | None) -> None:
        self._header[_CLIENTS] = 0 if clients is None else clients + 1

    @property
    def grace(self) -> float:
        """Longest time in seconds that the process takes to shut down."""
        return self._header[_GRACE] / 1000

    @grace.setter
    def grace(self, seconds: float) -> None:
        self._header[_GRACE] = int(seconds * 1000)

    @property
    def is_in_panic(self) -> bool:
        """Whether the process ignores health, everywhere or in a region."""
        return self._header[_PANIC] != 0

    @is_in_panic.setter
    def is_in_panic(self, is_so: bool) -> None:
        self._header[_PANIC] = is_so

    @property
    def failing_policy(self) -> int:
        """Key of the policy in force if it has failed in the process, else 0."""
        return self._header[_FAILING_POLICY]

    @failing_policy.setter
    def failing_policy(self, key: int) -> None:
        self._header[_FAILING_POLICY] = key

    # --- written by its own process

    def enter(self, key: int) -> int | None:
        """Assign a row to the endpoint with this key; return None if the page is full."""
        rows = self._header[_ROWS]
        row = self._free(rows)
        if row is None:
            return None
        self.in_flight[row] = self.conditions[row] = 0
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
        """Free the row of a removed endpoint."""
        self._keys[row] = self.in_flight[row] = self.conditions[row] = 0
        self._left.append(row)
        self._header[_GENERATION] += 1

    def tell(self, row: int, evidence: SharedLatency) -> None:
        """Publish this process's measurements; sums are written as means, which may be read beside an older count."""
        successes = evidence.successes or 1.0
        numbers = evidence._replace(latency=evidence.latency / successes, ahead=evidence.ahead / successes)
        for column, number in zip(self._latency, numbers, strict=True):
            column[row] = number

    # --- read by siblings

    def rows(self) -> dict[int, int]:
        """Return key -> row for all rows in use. O(rows)."""
        keys = self._keys[: self._header[_ROWS]].tolist()
        return {key: row for row, key in enumerate(keys) if key}

    def latency_of(self, row: int) -> SharedLatency:
        """Return the measurements that the page's process published."""
        read = SharedLatency(*(column[row] for column in self._latency))
        successes = read.successes
        return read._replace(latency=read.latency * successes, ahead=read.ahead * successes)

    # --- written by the supervisor

    def clear(self) -> None:
        """Clear the page of a dead process, with its requests in flight."""
        rows = self._header[_ROWS]
        self._header[_GENERATION] += 1
        for row in range(rows):
            self._keys[row] = self.in_flight[row] = self.conditions[row] = 0
            self._latency[0][row] = 0.0
            self._latency[SharedLatency._fields.index("failures")][row] = 0.0
        self._header[_ROWS] = self._header[_CLIENTS] = self._header[_PANIC] = 0
        self._header[_FAILING_POLICY] = 0

    @property
    def total_in_flight(self) -> int:
        """Requests that the process has in flight at all endpoints."""
        return sum(self.in_flight[: self._header[_ROWS]].tolist())


class SharedCounters:
    """One page for each process, in memory shared with the processes that are forked later."""

    def __init__(self, processes: int, capacity: int = CAPACITY) -> None:
        size = page_size(capacity)
        self._memory = mmap.mmap(-1, processes * size)
        whole = memoryview(self._memory)
        self.pages = [Page(whole[at * size : (at + 1) * size], capacity) for at in range(processes)]
