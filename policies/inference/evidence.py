"""What answers say of an endpoint's cache: how many blocks it holds.

An engine evicts the blocks that were used the longest ago: up to some age all are there. Blocks that are missing and
clearly younger than others that were cached lately were not evicted but lost, by a restart, and say nothing of the
capacity. They stay in the prefix index: a prompt is nowhere else, and its next request brings it back. Simulated with
six loads and engines that lose their caches, it is faster than to forget them, which leaves an emptied engine idle.
Whether an endpoint was down is not asked: after a fault of the network it has all blocks.
"""

from __future__ import annotations

from typing import Final

from policies.inference.index import Place

CAPACITY_STEP: Final = 0.05
"""Share by which an answer that contradicts the capacity changes it at most. Steps of one size in both directions end
where as many answers contradict it upwards as downwards, and one odd answer changes little."""

YOUNG: Final = 0.5
"""Part of the age of the oldest blocks that were cached lately below which missing ones were lost. Answers that are
written take room, too, so that the age varies."""

OLDEST_KEEP: Final = 0.99
"""Factor by which that age falls with each answer."""


class Attempt:
    """A prompt of `tokens` at an endpoint, of which `added` were to be computed.

    `ages` are those of its known blocks before it was sent, after the endpoint had been sent
    `after` blocks; `held` of them counted as cached.
    `keys` were recorded with it.
    """

    def __init__(self, blocks: list[int], tokens: float, is_streamed: bool, sent_at: float) -> None:
        self.blocks = blocks
        self.tokens = self.added = tokens
        self.is_streamed = is_streamed
        self.is_waiting = True
        self.sent_at = sent_at
        self.ages: list[int] = []
        self.keys: list[int] = []
        self.held = self.after = 0


class CacheEvidence:
    """What answers to this process say of one endpoint's cache.

    `_oldest` is the age of the oldest blocks that were cached lately. The first `_lost` blocks sent there were lost, as
    the answer to a prompt sent after the first `_lost_by` has shown. A prompt's block i is i older than the prompt.
    """

    def __init__(self) -> None:
        self._oldest = 0.0
        self._lost = self._lost_by = 0

    def capacity(self, place: Place, attempt: Attempt, cached: int) -> float:
        """Return the capacity, corrected by the ages of the first block that was not cached and of the one before."""
        ages, held, after = attempt.ages, attempt.held, attempt.after
        if cached == len(ages) + 1:
            cached -= 1  # of the next block, a part is cached
        if 0 < cached <= len(ages):
            age = ages[cached - 1]
            self._oldest = max(self._oldest * OLDEST_KEEP, age)
            if after > self._lost_by and after - age + cached <= self._lost:
                self._lost = self._lost_by = 0  # the blocks taken for lost were still cached
            if cached > held:
                return min(age + 1.0, place.capacity * (1.0 + CAPACITY_STEP))
        if cached < held:
            age = ages[cached]
            if age < self._oldest * YOUNG:
                self._lost, self._lost_by = max(self._lost, after - age + cached), after
            if after - age + cached > self._lost_by:
                return max(1.0, age, place.capacity * (1.0 - CAPACITY_STEP))
        return place.capacity
