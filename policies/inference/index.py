"""Prefix index: which endpoint has which blocks of prompts in its cache, as far as a router can know.

One table of constant size in one buffer, which the processes of a server may share. There is no lock: an entry is one
word of eight bytes, which is never torn, and a wrong word is a wrong guess. The buffer begins with a row per endpoint:

    key of the endpoint                     0 where the row is free
    blocks sent there                       by which entries age
    capacity                                blocks that its cache is assumed to hold, a float
    time at which the row was last in use   seconds
    time of the last first token            seconds, a float
    four sums of its pace                   floats, see `pace.py`
    three sums of each process              floats that only this process writes

Entries follow, in sets of `WAYS`: tag (22 bits), row (10), stamp (30). The set is found by the block's hash mixed with
the endpoint's. The stamp is the row's count of blocks when the block was last sent there. So an entry's age is about
the block's distance from the top of the endpoint's LRU, and it counts as held while that is less than the capacity.

A block that the endpoint did not hold moves all others down by a place, one that it held those above it: it adds its
own age to the count, as a share of the capacity.
"""

from __future__ import annotations

from typing import Final

from policies.inference.pace import Slowness
from policies.selection.hashing import mixed, of_name

WAYS: Final = 4
ROWS: Final = 1 << 10
ROW_WORDS: Final = 64
ROW_PROBES: Final = 16
"""Rows in which an endpoint may be; of these it takes over the one that was not in use for the longest time."""

SENT: Final = 1
CAPACITY: Final = 2
USED_AT: Final = 3
COMPUTED_AT: Final = 4
PACE: Final = 5
SUMS: Final = 9
SUMS_EACH: Final = 3
PROCESSES: Final = (ROW_WORDS - SUMS) // SUMS_EACH
"""Processes whose sums have room in a row; those of further ones are not seen by the others."""

STAMP_BITS: Final = 30
STAMP_MASK: Final = (1 << STAMP_BITS) - 1
ROW_BITS: Final = 10
TAG_SHIFT: Final = 40
HASH_MASK: Final = (1 << 62) - 1
"""Bits of a hash that are used: compiled, such an integer is no object."""

ABSENT: Final = 1 << 60
"""Age of a block that was never sent there, or whose entry was overwritten."""

WORD: Final = 8
ENTRIES_AT: Final = ROWS * ROW_WORDS
OWN_BYTES: Final = (ENTRIES_AT + (1 << 20)) * WORD
"""Bytes of the buffer of one process: a million entries, of which memory is taken as they are used."""

SHARED_BYTES: Final = (ENTRIES_AT + (1 << 23)) * WORD
"""Bytes of a buffer for all processes of a server: eight million entries."""


class Place:
    """An endpoint's row and the salt of its blocks, and what the row had when it was last read."""

    def __init__(self, key: int, row: int, slowness: Slowness) -> None:
        self.key = key
        self.row = row
        self.salt = mixed(key) & HASH_MASK
        self.sent = 0
        self.capacity = self.computed_at = 0.0
        self.rest = 0.0  # part of a block that is not counted yet
        self.slowness = slowness  # as all processes have measured it


class PrefixIndex:
    """The index in `memory`, of which the largest power of two of entries that fits is used."""

    def __init__(self, memory: memoryview) -> None:
        self._words: memoryview[int] = memory.cast("B").cast("q")
        self._numbers: memoryview[float] = memory.cast("B").cast("d")
        self._mask = (1 << (((len(self._words) - ENTRIES_AT) // WAYS).bit_length() - 1)) - 1
        # Of each row as last read, to find the entry of a set that is the least useful.
        self._sent = [0] * ROWS
        self._capacity = [1.0] * ROWS

    def place(self, name: str, now: float) -> Place:
        """Return the place of the endpoint of this id, the same in all processes, and take a row if it has none."""
        words = self._words
        key = of_name(name) & HASH_MASK | 1
        chosen = key % ROWS
        for step in range(ROW_PROBES):
            row = (key + step) % ROWS
            if words[row * ROW_WORDS] in (0, key):
                chosen = row
                break
            if words[row * ROW_WORDS + USED_AT] < words[chosen * ROW_WORDS + USED_AT]:
                chosen = row
        at = chosen * ROW_WORDS
        if words[at] != key:
            for word in range(at, at + ROW_WORDS):
                words[word] = 0
            words[at] = key
        place = Place(key, chosen, Slowness(self._numbers, at + PACE))
        self.keep(place, now)
        self.refresh(place)
        return place

    def keep(self, place: Place, now: float) -> bool:
        """Keep the row from being taken over. False: it has been, and `place` must be called again."""
        at = place.row * ROW_WORDS
        if self._words[at] != place.key:
            return False
        self._words[at + USED_AT] = int(now)
        return True

    def refresh(self, place: Place) -> None:
        """Read the row, which other processes write as well."""
        at, numbers = place.row * ROW_WORDS, self._numbers
        place.sent = self._sent[place.row] = self._words[at + SENT]
        place.capacity = numbers[at + CAPACITY]
        place.computed_at = numbers[at + COMPUTED_AT]
        self._capacity[place.row] = max(1.0, place.capacity)
        place.slowness.refresh()

    def assume(self, place: Place, capacity: float) -> None:
        """Assume that the endpoint holds so many blocks."""
        place.capacity = self._numbers[place.row * ROW_WORDS + CAPACITY] = capacity
        self._capacity[place.row] = max(1.0, capacity)

    def compute(self, place: Place, now: float) -> None:
        """Record that the first token of some answer came."""
        place.computed_at = self._numbers[place.row * ROW_WORDS + COMPUTED_AT] = now

    def advance(self, place: Place, blocks: float) -> None:
        """Count so many more blocks as sent there."""
        blocks += place.rest
        whole = int(blocks)
        place.rest = blocks - whole
        at = place.row * ROW_WORDS + SENT
        place.sent = self._sent[place.row] = self._words[at] = self._words[at] + whole

    def publish(self, place: Place, process: int, one: float, two: float, three: float) -> None:
        """Write the sums of a process, which the others read."""
        if process < PROCESSES:
            at = place.row * ROW_WORDS + SUMS + process * SUMS_EACH
            self._numbers[at], self._numbers[at + 1], self._numbers[at + 2] = one, two, three

    def published(self, place: Place, but: int, processes: int) -> tuple[float, float, float]:
        """Return the sums of all processes but one."""
        numbers, at = self._numbers, place.row * ROW_WORDS + SUMS
        one = two = three = 0.0
        for process in range(min(processes, PROCESSES)):
            if process != but:
                one += numbers[at]
                two += numbers[at + 1]
                three += numbers[at + 2]
            at += SUMS_EACH
        return one, two, three

    def age(self, hashed: int, place: Place) -> int:
        """Return how many blocks ago the block was sent there; ABSENT if it is not known to have been."""
        at, stamp = self._find(hashed, place)
        return (place.sent - stamp) & STAMP_MASK if at >= 0 else ABSENT

    def depth(self, blocks: list[int], place: Place) -> int:
        """Return how many blocks of a prompt are held there: a binary search, as a prefix is held up to a depth."""
        capacity = place.capacity
        high = len(blocks)
        if high == 0 or self.age(blocks[0], place) >= capacity:
            return 0
        low = 1
        while low < high:
            middle = (low + high) >> 1
            if self.age(blocks[middle], place) < capacity:
                low = middle + 1
            else:
                high = middle
        return low

    def send(self, blocks: list[int], place: Place) -> list[int]:
        """Record that a prompt is sent there. Return the ages that its blocks had until now, up to the first unknown.

        The end of a prompt leaves an LRU before its beginning, so block i is stamped as sent i blocks ago.
        """
        words, capacity, sent = self._words, place.capacity, place.sent
        ages: list[int] = []
        found: list[int] = []
        added = float(len(blocks))
        for hashed in blocks:
            at, stamp = self._find(hashed, place)
            if at < 0:
                break  # and so are those behind it, but for entries that were overwritten
            age = (sent - stamp) & STAMP_MASK
            ages.append(age)
            found.append(at)
            if age < capacity:
                added += age / capacity - 1.0
        self.advance(place, added)
        known, stamp = len(found), place.sent
        for i in range(len(blocks)):
            bits = (blocks[i] & HASH_MASK) ^ place.salt
            at = found[i] if i < known else self._least_useful((bits & self._mask) * WAYS + ENTRIES_AT)
            words[at] = ((bits >> TAG_SHIFT) << ROW_BITS | place.row) << STAMP_BITS | (
                (stamp - i) & STAMP_MASK
            )
        return ages

    def forget(self, blocks: list[int], place: Place) -> None:
        """Forget blocks that did not get there."""
        for hashed in blocks:
            at, _ = self._find(hashed, place)
            if at >= 0:
                self._words[at] = 0

    def _find(self, hashed: int, place: Place) -> tuple[int, int]:
        """Return the position and the stamp of a block's entry, −1 and 0 if there is none."""
        bits = (hashed & HASH_MASK) ^ place.salt
        first = (bits & self._mask) * WAYS + ENTRIES_AT
        wanted = (bits >> TAG_SHIFT) << ROW_BITS | place.row
        words = self._words
        for at in range(first, first + WAYS):
            word = words[at]
            if word >> STAMP_BITS == wanted:
                return at, word & STAMP_MASK
        return -1, 0

    def _least_useful(self, first: int) -> int:
        """Return the first position of a set that is free or not held any more, else that of its oldest entry."""
        words, chosen, oldest = self._words, first, 0.0
        for at in range(first, first + WAYS):
            word = words[at]
            row = (word >> STAMP_BITS) & (ROWS - 1)
            age = ((self._sent[row] - word) & STAMP_MASK) / self._capacity[row]
            if word == 0 or age >= 1.0:
                return at
            if age > oldest:
                chosen, oldest = at, age
        return chosen
