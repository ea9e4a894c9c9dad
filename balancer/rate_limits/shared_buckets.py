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
exist. If its set has none, a bucket is given away that is not full, so nobody is refused for want of a place: of the
limit with the most places in the set, the new key's counted, the bucket that is nearest to full. So requests under
many keys of one limit take no places from limits with fewer. Nor do they reset a used bucket cheaply: one that lacks k
tokens is given away only when the 15 others of its set lack as many, for which 15 · k requests were admitted.

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

HASH_BITS: Final = 48
"""Bits of a key that are its hash; those above are its owner, the limit. One new key in 10⁹ meets an equal one."""

OWNERS: Final = 1 << 12
"""Limits that are told apart; two that share a number share their part of a set."""


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

    def add_to(self, bucket: BucketState, place: int) -> None:
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


def owner_of(identity: int) -> int:
    """Return the number of a limit within a key, at least 1, from a hash of its identity."""
    return identity % (OWNERS - 1) + 1


def key_of_bucket(owner: int, source: int) -> int:
    """Return the key of a bucket from its owner and a hash of its source."""
    return owner << HASH_BITS | source & ((1 << HASH_BITS) - 1)


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


class BucketState:
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

    def read(self, key: int) -> BucketState:
        """Return the bucket of a key: 64 bits, neither `FREE` nor `CHANGING`."""
        first = (key & self._mask) * WORDS
        own = self._own
        place = own.find(first, key)
        bucket = BucketState(key, first, place)
        if place >= 0:
            own.add_to(bucket, place)
        for table in self._others:
            there = table.find(first, key)
            if there >= 0:
                table.add_to(bucket, there)
        return bucket

    def take(
        self, bucket: BucketState, since: float, full_at: float, now: float, tokens: float = 1.0
    ) -> bool:
        """Take tokens of a bucket that was read, and publish its `since` and `full_at`.

        Returns whether a bucket that was not full was given away for it.
        """
        own = self._own
        numbers = own.numbers
        place = bucket.place
        is_new = place < 0 or own.keys[place] != bucket.key  # the same request may have given its place away
        is_given_away = False
        if is_new:
            place = self._unused(bucket.first, bucket.key, now)
            if place < 0:
                is_given_away = True
                place = self._nearest_to_full(bucket.first, bucket.key)
            own.keys[place] = CHANGING
            numbers[place + TAKEN] = 0.0
        numbers[place + SINCE] = since
        numbers[place + FULL_AT] = full_at
        numbers[place + TAKEN] += tokens
        if is_new:
            own.keys[place] = bucket.key
            bucket.place = place
        return is_given_away

    def _unused(self, first: int, key: int, now: float) -> int:
        """Return a place for a new key in a set of the own table that is free or whose bucket is full, otherwise -1."""
        own = self._own
        begin = first_way(key)
        for step in range(WAYS):
            place = first + (begin + step) % WAYS
            there: int = own.keys[place]
            full_at: float = own.numbers[place + FULL_AT]
            if there == FREE or (full_at <= now and self._full_at(first, place) <= now):
                return place
        return -1

    def _nearest_to_full(self, first: int, key: int) -> int:
        """Return the place of the bucket that is nearest to full, of the owner with the most places and new keys."""
        keys: list[int] = self._own.keys[first : first + WAYS].tolist()
        owners = [there >> HASH_BITS for there in (*keys, key)]
        most = max(owners, key=owners.count)
        nearest, soonest = first, inf
        for way in range(WAYS):
            place = first + way
            if owners[way] == most and self._own.numbers[place + FULL_AT] < soonest:
                full_at = self._full_at(first, place)
                if full_at < soonest:
                    nearest, soonest = place, full_at
        return nearest

    def _full_at(self, first: int, place: int) -> float:
        """Return when the bucket at a place is full, as the process states that has taken a token of it last."""
        key: int = self._own.keys[place]
        latest: float = self._own.numbers[place + FULL_AT]
        for table in self._others:
            there = table.find(first, key)
            if there >= 0:
                full_at: float = table.numbers[there + FULL_AT]
                latest = max(latest, full_at)
        return latest
