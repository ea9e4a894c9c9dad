"""Model of an inference engine with continuous batching, as vLLM's V1: waiting queue, chunked prefill, decode steps
whose time grows with the batch, KV cache with prefix reuse, preemption, refusal. Pure: no I/O, no clock, no randomness.

One step computes one token of each sequence that decodes and, with what is left of the token budget (`chunk`), prompt
tokens in order of arrival. Steps that are alike form a run, which is computed in closed form: it ends when a sequence
finishes, a prompt is computed, blocks run out, or an arrival or a cancellation changes the batch. So the cost is not
per token, but O(log n) per sequence, O(1) per run and per block of a prompt.

Differences from vLLM: a sequence is admitted once the blocks of its whole prompt are free (vLLM with
`scheduler_reserve_full_isl`), and blocks of generated tokens are not reused. All times are in seconds; `now` is of any
clock and must not decrease.
"""

from __future__ import annotations

import heapq
from collections import deque
from math import ceil, inf
from typing import Final

from workers.inference.cache import BlockCache
from workers.inference.sequence import (
    ABSENT,
    DECODING,
    FINISHED,
    FIRST_TOKEN,
    PREFILLING,
    WAITING,
    Event,
    Sequence,
)
from workers.inference.settings import EngineModel

__all__ = ["FINISHED", "FIRST_TOKEN", "Engine", "EngineModel", "Event", "Sequence"]

_push: Final = heapq.heappush
_pop: Final = heapq.heappop

ORDER_BITS: Final = 32
"""Entries of the heap are one integer: the step with which a sequence finishes, then its order of admission."""
ORDER_MASK: Final = (1 << ORDER_BITS) - 1
ROUNDING: Final = 1e-9
"""Share of a step within which an instant counts as the end of the step."""


class Engine:
    """One engine. Call `advance` when `next_at` is due, and before other methods if it is; `submit`, `cancel` and
    `slow_down` may change `next_at`.

    `waiting` counts sequences in the queue; `queries` and `hits` are prompt tokens looked up in the cache and found
    there, `preemptions` counts sequences that had to begin again because blocks ran out.
    """

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.next_at = inf
        self.waiting = 0
        self.hits = 0
        self.queries = 0
        self.preemptions = 0
        self._longest: int = model.longest
        self._max_waiting: int = -1 if model.max_waiting is None else model.max_waiting
        self._block_tokens = model.block_tokens
        self._cache = BlockCache(model.kv_blocks, model.block_tokens)
        self._queue: deque[Sequence] = deque()  # cancelled ones stay until their turn
        self._running: dict[int, Sequence] = {}  # by order of admission
        self._admitted = 0
        self._prefilling: Sequence | None = None  # the one whose prompt takes more steps
        self._completing: list[Sequence] = []  # whose prompt is computed with the step in progress
        self._decoding = 0
        self._finishing: list[int] = []  # a heap; entries of cancelled sequences stay until they are on top
        # How many sequences need a block in step s: at s modulo block_tokens.
        self._phases = [0] * model.block_tokens
        # The run: `_count` steps of `_step` seconds from `_started_at` on, `_take` tokens of `_prefilling` in each.
        self._steps = 0  # before the run
        self._started_at = 0.0
        self._step = 0.0
        self._count = 0
        self._take = 0
        self._factor = 1.0

    @property
    def running(self) -> int:
        """Sequences that have been admitted and have not finished."""
        return len(self._running)

    def kv_usage(self, now: float) -> float:
        """Share of the KV cache that sequences hold, 0 to 1. Blocks that only remain for reuse are free."""
        used = self._cache.used
        if self._count > 1:
            used += self._allocated(self._steps + 1, self._begun(now) - 1)
        return used / self.model.kv_blocks

    def submit(self, sequence: Sequence, now: float) -> bool:
        """Append a sequence to the waiting queue. False: refused, because the queue is full.

        Raises ValueError if the cache can never hold it.
        """
        if sequence.tokens < 1 or sequence.output < 1 or sequence.tokens + sequence.output > self._longest:
            raise ValueError(
                f"a prompt and its answer have at least one token each, together at most {self._longest}"
            )
        if 0 <= self._max_waiting <= self.waiting:
            return False
        sequence.stage = WAITING
        self._queue.append(sequence)
        self.waiting += 1
        if self._count == 0:
            self._begin(now)
        elif self.waiting == 1 and self._take == 0:  # a step that computes a longer prompt has no room
            self._cut(now)
        return True

    def cancel(self, sequence: Sequence, now: float) -> None:
        """Remove a sequence and free its blocks at once. The step in progress takes its time nevertheless."""
        stage = sequence.stage
        if stage == ABSENT:
            return
        sequence.stage = ABSENT
        self._settle(now)
        if stage == WAITING:
            self.waiting -= 1
            if self.waiting == 0:
                self._queue.clear()
            return
        del self._running[sequence.order]
        computed = sequence.tokens
        if stage == DECODING:
            self._leave_batch(sequence)
        elif sequence is self._prefilling:
            self._prefilling = None
            computed = sequence.computed + self._take
        else:
            self._completing.remove(sequence)
        self._release(sequence, sequence.tokens + sequence.generated, computed)

    def advance(self, now: float) -> list[Event]:
        """Compute all steps that have ended by `now`; return what they brought, in order."""
        events: list[Event] = []
        while self.next_at <= now:
            self._end(self.next_at, events)
        return events

    def generated_by(self, sequence: Sequence, now: float) -> int:
        """Tokens of the answer by `now`, which is before `next_at`."""
        if sequence.stage != DECODING:
            return sequence.generated
        return sequence.generated + self._steps + self._ended(now) - sequence.since

    def next_step_at(self, now: float) -> float:
        """The end of the step in progress, when the next tokens are there; inf if idle."""
        ended = self._ended(now) if self._count > 1 else 0
        return self.next_at if ended + 1 >= self._count else self._started_at + (ended + 1) * self._step

    def slow_down(self, factor: float, now: float) -> None:
        """Multiply the time of steps by `factor`, from the next one on."""
        self._factor = factor
        self._cut(now)

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, at: float) -> None:
        """Begin a run at `at`: preempt, allocate, admit."""
        is_short = False
        phase = self._steps % self._block_tokens
        while self._phases[phase] > self._cache.total - self._cache.used:
            self._preempt()
            is_short = True
        self._cache.grow(self._phases[phase])
        budget = self.model.chunk - self._decoding
        tokens = take = 0
        count = 1
        prefilling = self._prefilling
        if prefilling is not None:
            tokens = prefilling.tokens + prefilling.generated - prefilling.computed
            if tokens > budget:
                count = (tokens - 1) // budget
                tokens = take = budget
            else:
                self._completing.append(prefilling)
                self._prefilling = None
        if self.waiting and tokens < budget and not is_short:
            tokens += self._admit(budget - tokens)
            if self._prefilling is not None:
                take = self._take
        self._take = take
        if tokens == 0 and not is_short:
            count = 0  # no bound by prompts
        if count != 1:
            count = self._bounded(count)
        self._count = count
        self._started_at = at
        model = self.model
        self._step = (
            model.base + model.per_sequence * self._decoding + tokens / model.prefill
        ) * self._factor
        self.next_at = at + count * self._step

    def _bounded(self, count: int) -> int:
        """Steps of a run until a sequence finishes or blocks run out, at most `count` if it is not 0."""
        finishing = self._finishing
        while finishing and (finishing[0] & ORDER_MASK) not in self._running:
            _pop(finishing)
        if finishing:
            left = (finishing[0] >> ORDER_BITS) - self._steps
            if count == 0 or left < count:
                count = left
        free = self._cache.total - self._cache.used
        if self._decoding * (count // self._block_tokens + 1) > free:
            for i in range(1, count):
                free -= self._phases[(self._steps + i) % self._block_tokens]
                if free < 0:
                    return i
        return count

    def _end(self, at: float, events: list[Event]) -> None:
        """End the run at `at`, and begin the next one."""
        count = self._count
        if count > 1:
            self._cache.grow(self._allocated(self._steps + 1, count - 1))
        self._steps += count
        if self._prefilling is not None:
            self._prefilling.computed += self._take * count
        last = ((self._steps + 1) << ORDER_BITS) - 1
        finishing = self._finishing
        while finishing and finishing[0] <= last:
            sequence = self._running.get(_pop(finishing) & ORDER_MASK)
            if sequence is not None:
                self._leave_batch(sequence)
                self._finish(sequence, at, events)
        for sequence in self._completing:
            sequence.generated += 1
            if sequence.generated == 1:
                sequence.first_token_at = at
                events.append(Event(FIRST_TOKEN, sequence, at))
            if sequence.generated == sequence.output:
                self._finish(sequence, at, events)
            else:
                self._join_batch(sequence)
        self._completing.clear()
        self._count = 0
        self.next_at = inf
        if self.waiting or self._running:
            self._begin(at)

    def _finish(self, sequence: Sequence, at: float, events: list[Event]) -> None:
        del self._running[sequence.order]
        sequence.stage = ABSENT
        sequence.finished_at = at
        self._release(sequence, sequence.tokens + sequence.generated - 1, sequence.tokens)
        events.append(Event(FINISHED, sequence, at))

    def _begun(self, now: float) -> int:
        """Steps of the run that have begun before `now`, at least one."""
        return min(max(ceil((now - self._started_at) / self._step - ROUNDING), 1), self._count)

    def _ended(self, now: float) -> int:
        """Steps of the run that have ended by `now`."""
        return min(int((now - self._started_at) / self._step + ROUNDING), self._count)

    def _cut(self, now: float) -> None:
        """End the run with the step in progress."""
        count = self._begun(now) if self._count > 1 else self._count
        if count < self._count:
            self._count = count
            self.next_at = max(now, self._started_at + count * self._step)

    def _settle(self, now: float) -> None:
        """Cut the run, and leave only the step in progress in it."""
        self._cut(now)
        count = self._count - 1
        if count > 0:
            self._cache.grow(self._allocated(self._steps + 1, count))
            self._steps += count
            if self._prefilling is not None:
                self._prefilling.computed += self._take * count
            self._started_at = self.next_at - self._step
            self._count = 1

    # ── sequences ────────────────────────────────────────────────────────────────────────────────────────

    def _admit(self, budget: int) -> int:
        """Admit waiting sequences that find room; return how many of their tokens the step computes."""
        tokens = 0
        queue = self._queue
        while self.waiting and tokens < budget and len(self._running) < self.model.max_batch:
            sequence = queue[0]
            if sequence.stage == ABSENT:
                queue.popleft()
                continue
            length = sequence.tokens + sequence.generated
            held = self._cache.take(list(sequence.blocks), sequence.tokens, length)
            if held is None:
                break
            sequence.held = held
            sequence.computed = self._cache.found * self._block_tokens
            if sequence.order == 0:
                sequence.cached = sequence.computed
                self.hits += sequence.cached
                self.queries += sequence.tokens
            queue.popleft()
            self.waiting -= 1
            self._admitted += 1
            sequence.order = self._admitted
            sequence.stage = PREFILLING
            self._running[self._admitted] = sequence
            rest = length - sequence.computed
            if rest <= budget - tokens:
                self._completing.append(sequence)
                tokens += rest
            else:
                self._prefilling = sequence
                self._take = budget - tokens
                tokens = budget
        return tokens

    def _preempt(self) -> None:
        """Return the sequence admitted last to the head of the queue; its tokens must be computed again."""
        order = next(reversed(self._running))
        sequence = self._running.pop(order)
        if sequence is self._prefilling:
            self._prefilling = None
            self._release(sequence, sequence.tokens + sequence.generated, sequence.computed)
        else:
            self._leave_batch(sequence)
            self._release(sequence, sequence.tokens + sequence.generated - 1, sequence.tokens)
        sequence.stage = WAITING
        self._queue.appendleft(sequence)
        self.waiting += 1
        self.preemptions += 1

    def _join_batch(self, sequence: Sequence) -> None:
        sequence.stage = DECODING
        sequence.since = self._steps
        self._decoding += 1
        self._phases[self._phase_of(sequence)] += 1
        last = self._steps + sequence.output - sequence.generated
        _push(self._finishing, last << ORDER_BITS | sequence.order)

    def _leave_batch(self, sequence: Sequence) -> None:
        self._decoding -= 1
        self._phases[self._phase_of(sequence)] -= 1
        sequence.generated += self._steps - sequence.since

    def _release(self, sequence: Sequence, length: int, computed: int) -> None:
        self._cache.give_back(sequence.held, length, computed)
        sequence.held = []

    def _phase_of(self, sequence: Sequence) -> int:
        """Steps, modulo block_tokens, with which the sequence needs one more block."""
        return (sequence.since - sequence.tokens - sequence.generated + 1) % self._block_tokens

    def _allocated(self, first: int, count: int) -> int:
        """Blocks that the batch takes in `count` steps from step `first` on."""
        size = self._block_tokens
        cycles, rest = divmod(count, size)
        total = cycles * self._decoding
        for i in range(first, first + rest):
            total += self._phases[i % size]
        return total
