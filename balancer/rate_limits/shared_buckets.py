"""Token buckets in memory that sibling processes share: a table of fixed size for each, which only it writes.

A bucket is found by the hash of its key. The hash selects a set of `WAYS` places, the same set in the table of every
process, and the place in it that is tried first. So what the others have taken, or that they have taken nothing, is
mostly known after one word of each. There is no lock: a word of eight bytes is never torn, and
`policies/overload/token_bucket.py` shows how numbers of different instants are merged.

    set     key of each place                          WAYS words
            tokens that this process has taken         WAYS words
            `since` as this process published it       WAYS words
            time at which the bucket will be full      WAYS words

A new key takes a free place or that of a bucket that is full in all tables: a full bucket is like one that does not
exist. The place of any other bucket is never given away, so a flood of keys cannot reset a used bucket. A key for which
there is no place is refused until a bucket of its set is full. While 100,000 buckets are not full, this happens to one
new key in 1,600.

A table outlives its process: the supervisor does not clear it, and the process that is started in its place continues
with it.
"""

from __future__ import annotations

import mmap
from math import inf
from typing import Final

WAYS: Final = 16
"""Places in a set; more take longer to search, fewer are full sooner."""

SETS: Final = 1 << 14
"""Sets of a table, a power of 2; 8 MiB of address space, of which only used pages take memory."""

TAKEN: Final = WAYS
SINCE: Final = 2 * WAYS
FULL_AT: Final = 3 * WAYS
WORDS: Final = 4 * WAYS
WORD: Final = 8

FREE: Final = 0
"""Key of a place that has never been used."""

CHANGING: Final = -1
"""Key of a place whose numbers are being replaced; `hash` never returns it."""

SOON: Final = 1e-3
"""Least wait in seconds for a place."""


class BucketTable:
    """Table of one process: the same words as keys and as numbers."""

    def __init__(self, memory: memoryview) -> None:
        self.keys = memory.cast("q")
        self.numbers = memory.cast("d")

    def find(self, first: int, key: int) -> int:
        """Return the place of a key in the set that begins at `first`, -1 if it is not there.

        A used place never becomes free, so a key whose first place is free is nowhere else.
        """
        place = first + first_way(key)
        there: int = self.keys[place]
        if there == key:
            return place
        if there == FREE:
            return -1
        keys: list[int] = self.keys[first : first + WAYS].tolist()
        return first + keys.index(key) if key in keys else -1

    def add_to(self, bucket: Bucket, place: int) -> None:
        """Add the numbers at a place to a bucket. Its process writes `since` before the count, which is read first.

        They are those of another bucket if the place has been given away since the key was found there.
        """
        taken: float = self.numbers[place + TAKEN]
        since: float = self.numbers[place + SINCE]
        there: int = self.keys[place]
        if there != bucket.key:
            return
        bucket.taken += taken
        if since > bucket.since:
            bucket.since = since


def first_way(key: int) -> int:
    """Return the place within its set that is tried first; it depends on other bits than the set."""
    return (key >> 32) % WAYS


class SharedBuckets:
    """One table for each process, in memory shared with the processes that are forked later."""

    def __init__(self, processes: int = 1, sets: int = SETS) -> None:
        size = sets * WORDS * WORD
        whole = memoryview(mmap.mmap(-1, processes * size))
        self.sets = sets
        self.tables = [BucketTable(whole[at * size : (at + 1) * size]) for at in range(processes)]


class Bucket:
    """A bucket as read: what all processes have taken, the latest `since`, and its place in the own table or -1."""

    __slots__ = ("first", "key", "place", "since", "taken")

    def __init__(self, key: int, first: int, place: int) -> None:
        self.key = key
        self.first = first
        self.place = place
        self.taken = 0.0
        self.since = -inf


class Buckets:
    """The buckets of all processes, as process `index` reads and writes them."""

    def __init__(self, shared: SharedBuckets, index: int = 0) -> None:
        self._own = shared.tables[index]
        self._others = [table for at, table in enumerate(shared.tables) if at != index]
        self._mask = shared.sets - 1

    def read(self, key: int) -> Bucket:
        """Return the bucket of a key: a hash of 64 bits, neither `FREE` nor `CHANGING`."""
        first = (key & self._mask) * WORDS
        own = self._own
        place = own.find(first, key)
        bucket = Bucket(key, first, place)
        if place >= 0:
            own.add_to(bucket, place)
        for table in self._others:
            there = table.find(first, key)
            if there >= 0:
                table.add_to(bucket, there)
        return bucket

    def take(self, bucket: Bucket, since: float, full_at: float, now: float) -> float:
        """Take a token of a bucket that was read, and publish its `since` and `full_at`.

        Returns the seconds until there is a place for the bucket, 0 if it has one.
        """
        own = self._own
        numbers = own.numbers
        place = bucket.place
        if place < 0:
            place = self._place(bucket.first, bucket.key, now)
            if place < 0:
                return self._until_place(bucket.first, now)
            own.keys[place] = CHANGING
            numbers[place + TAKEN] = 0.0
        numbers[place + SINCE] = since
        numbers[place + FULL_AT] = full_at
        numbers[place + TAKEN] += 1.0
        if bucket.place < 0:
            own.keys[place] = bucket.key
            bucket.place = place
        return 0.0

    def give_back(self, bucket: Bucket) -> None:
        """Give back the token that was just taken."""
        self._own.numbers[bucket.place + TAKEN] -= 1.0

    def _place(self, first: int, key: int, now: float) -> int:
        """Return a place for a new key in a set of the own table, -1 if there is none."""
        own = self._own
        begin = first_way(key)
        for step in range(WAYS):
            place = first + (begin + step) % WAYS
            there: int = own.keys[place]
            full_at: float = own.numbers[place + FULL_AT]
            if there == FREE or (full_at <= now and self._is_full_elsewhere(first, there, now)):
                return place
        return -1

    def _is_full_elsewhere(self, first: int, key: int, now: float) -> bool:
        """Return whether no other process has taken a token since the own table states that the bucket is full."""
        for table in self._others:
            place = table.find(first, key)
            if place >= 0:
                full_at: float = table.numbers[place + FULL_AT]
                if full_at > now:
                    return False
        return True

    def _until_place(self, first: int, now: float) -> float:
        """Return the seconds until one bucket of a set is full; little if other processes have taken of it."""
        soonest = inf
        for at in range(first + FULL_AT, first + FULL_AT + WAYS):
            full_at: float = self._own.numbers[at]
            soonest = min(soonest, full_at)
        return max(soonest - now, SOON)
