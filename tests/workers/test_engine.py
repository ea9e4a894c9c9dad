"""The model of an engine: beside cases computed by hand, and beside a reference that computes every single step."""

from __future__ import annotations

from math import ceil, inf
from random import Random

import pytest

from workers.inference.engine import FINISHED, FIRST_TOKEN, Engine, EngineModel, Sequence

SMALL = EngineModel(
    prefill=1000, chunk=100, base=0.1, per_sequence=0.01, block_tokens=10, kv_blocks=100, max_batch=10
)
"""A step takes 100 ms, 10 ms more per sequence that decodes and 1 ms more per token of a prompt."""


def drain(engine: Engine) -> list[tuple[int, object, float]]:
    """Everything that happens from now on, as (kind, tag, instant), rounded to nanoseconds."""
    happened: list[tuple[int, object, float]] = []
    while engine.next_at < inf:
        happened += [
            (event.kind, event.sequence.tag, round(event.at, 9)) for event in engine.advance(engine.next_at)
        ]
    return happened


def request(tag: str, tokens: int, output: int, blocks: int = 0, prefix: int = 0) -> Sequence:
    """A sequence whose first `prefix` blocks are common, and the rest its own."""
    own = [hash((tag, i)) for i in range(blocks - prefix)]
    return Sequence([*range(prefix), *own], tokens, output, tag)


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────────────


def test_first_token_follows_the_chunks_of_the_prompt() -> None:
    engine = Engine(SMALL)
    sequence = request("a", 250, 3)
    assert engine.submit(sequence, 5.0)
    assert drain(engine) == [(FIRST_TOKEN, "a", 5.55), (FINISHED, "a", 5.77)]
    assert [sequence.first_token_at, sequence.finished_at] == pytest.approx([5.55, 5.77])


def test_second_prompt_computes_what_the_first_did_not() -> None:
    engine = Engine(SMALL)
    engine.submit(request("a", 85, 1, blocks=8, prefix=6), 0.0)
    drain(engine)
    second = request("b", 85, 1, blocks=8, prefix=6)
    engine.submit(second, 1.0)
    assert drain(engine)[-1] == (FINISHED, "b", 1.125)
    assert (second.cached, engine.hits, engine.queries) == (60, 60, 170)


def test_batch_slows_steps_and_a_prompt_more() -> None:
    engine = Engine(SMALL)
    engine.submit(request("a", 10, 3), 0.0)  # first token at 0.11, decoding from then on
    engine.submit(request("b", 50, 2), 0.05)
    assert drain(engine) == [
        (FIRST_TOKEN, "a", 0.11),
        (FIRST_TOKEN, "b", 0.27),  # 100 + 10 for a + 50 for b's prompt
        (FINISHED, "a", 0.39),  # 100 + 2 · 10
        (FINISHED, "b", 0.39),
    ]


def test_youngest_is_preempted_when_blocks_run_out() -> None:
    engine = Engine(EngineModel(prefill=1e12, base=1.0, per_sequence=0.0, block_tokens=10, kv_blocks=4))
    old, young = request("old", 10, 25), request("young", 10, 15)
    engine.submit(old, 0.0)
    engine.submit(young, 0.5)
    assert [event.at for event in engine.advance(10.5)] == pytest.approx([1.0, 2.0])
    assert (engine.preemptions, engine.kv_usage(10.5)) == (0, 1.0)  # two blocks each
    engine.advance(11.5)  # in step 12, old needs a third one
    assert (engine.preemptions, engine.running, engine.waiting) == (1, 1, 1)
    assert drain(engine)[0] == (FINISHED, "old", 25.0)
    assert (young.generated, young.cached) == (15, 0)
    assert engine.kv_usage(99.0) == 0.0


def test_full_queue_refuses() -> None:
    engine = Engine(EngineModel(max_waiting=1, max_batch=1))
    assert [engine.submit(request(tag, 10, 5), 0.0) for tag in "abc"] == [True, True, False]
    assert (engine.running, engine.waiting) == (1, 1)
    drain(engine)
    assert engine.submit(request("d", 10, 5), 10.0)


@pytest.mark.parametrize(("tokens", "output"), [(0, 1), (1, 0), (900, 101)])
def test_sequence_that_can_never_run_is_an_error(tokens: int, output: int) -> None:
    with pytest.raises(ValueError, match="at most 1000"):
        Engine(SMALL).submit(Sequence([], tokens, output), 0.0)


@pytest.mark.parametrize("at", [0.05, 0.15, 0.35, 1.5])
def test_cancelled_sequence_frees_everything_at_once(at: float) -> None:
    engine = Engine(SMALL)
    sequence = request("a", 150, 50, blocks=15)
    engine.submit(sequence, 0.0)
    engine.advance(at)
    engine.cancel(sequence, at)
    assert (engine.running, engine.waiting, engine.kv_usage(at)) == (0, 0, 0.0)
    assert drain(engine) == []
    engine.cancel(sequence, at)


def test_slower_steps_from_the_next_one_on() -> None:
    engine = Engine(SMALL)
    sequence = request("a", 10, 6)
    engine.submit(sequence, 0.0)
    engine.advance(0.11)  # one token, then one each 0.11
    assert engine.next_step_at(0.3) == pytest.approx(0.33)
    engine.slow_down(2.0, 0.3)
    assert drain(engine) == [(FINISHED, "a", 0.99)]


# ── beside every single step ─────────────────────────────────────────────────────────────────────────────


class Reference:
    """The same engine computed step by step and token by token, with lists only."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.computed: dict[Sequence, int] = {}
        self.blocks: dict[Sequence, int] = {}
        self.keys: dict[Sequence, list[int]] = {}  # of those blocks that others can use
        self.table: list[int] = []  # of all keys; those that are not held, from the least recently used on
        self.decoding: set[Sequence] = set()
        self.in_step: dict[Sequence, int] = {}
        self.preemptions = 0

    def held(self) -> set[int]:
        return {key for keys in self.keys.values() for key in keys}

    def used(self) -> int:
        return len(self.held()) + sum(self.blocks[one] - len(self.keys[one]) for one in self.keys)

    def leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.decoding.discard(sequence)
        del self.blocks[sequence]
        computed = self.computed[sequence] + self.in_step.pop(sequence, 0)
        for i, key in reversed(list(enumerate(self.keys.pop(sequence)))):
            if key not in self.held():
                self.table.remove(key)
                if i < computed // self.model.block_tokens:
                    self.table.append(key)

    def cancel(self, sequence: Sequence) -> None:
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.running:
            self.leave(sequence)

    def begin(self) -> float:
        """Begin a step; return its duration, 0 if there is nothing to do."""
        model, preemptions = self.model, self.preemptions
        while sum(map(self._lacks, self.decoding)) > model.kv_blocks - self.used():
            youngest = self.running[-1]
            self.leave(youngest)
            self.waiting.insert(0, youngest)
            self.preemptions += 1
        for sequence in self.decoding:
            self.blocks[sequence] += self._lacks(sequence)
            self._evict()
            self.in_step[sequence] = 1
        decoding = len(self.in_step)
        budget = model.chunk - decoding
        for sequence in self.running:
            if sequence not in self.in_step:
                rest = sequence.tokens + sequence.generated - self.computed[sequence]
                self.in_step[sequence] = min(rest, budget)
                budget -= self.in_step[sequence]
        while self.waiting and budget and len(self.running) < model.max_batch:
            if self.preemptions > preemptions or not self._place(self.waiting[0]):
                break
            sequence = self.waiting.pop(0)
            self.running.append(sequence)
            rest = sequence.tokens + sequence.generated - self.computed[sequence]
            self.in_step[sequence] = min(rest, budget)
            budget -= self.in_step[sequence]
        prompts = sum(self.in_step.values()) - decoding
        return model.base + model.per_sequence * decoding + prompts / model.prefill if self.running else 0.0

    def _lacks(self, sequence: Sequence) -> int:
        """Blocks that a sequence needs for its next token, 0 or 1."""
        needed = ceil((sequence.tokens + sequence.generated) / self.model.block_tokens)
        return needed - self.blocks[sequence]

    def _place(self, sequence: Sequence) -> bool:
        size, keys = self.model.block_tokens, list(sequence.blocks)
        length = sequence.tokens + sequence.generated
        found = 0
        while found < min(len(keys), (length - 1) // size) and keys[found] in self.table:
            found += 1
        self.keys[sequence], self.blocks[sequence] = keys[:found], ceil(length / size)
        if self.used() > self.model.kv_blocks:
            del self.keys[sequence], self.blocks[sequence]
            return False
        for key in keys[found:]:
            if key not in self.table:
                self.table.append(key)
                self.keys[sequence].append(key)
        if sequence not in self.computed:
            sequence.cached = found * size
        self.computed[sequence] = found * size
        self._evict()
        return True

    def _evict(self) -> None:
        held = self.held()
        while self.used() + len([key for key in self.table if key not in held]) > self.model.kv_blocks:
            self.table.remove(next(key for key in self.table if key not in held))

    def end(self) -> list[tuple[int, object]]:
        """End the step; return what happened, as (kind, tag)."""
        happened: list[tuple[int, object]] = []
        for sequence in list(self.running):
            self.computed[sequence] += self.in_step.pop(sequence)
            if self.computed[sequence] == sequence.tokens + sequence.generated:
                sequence.generated += 1
                self.decoding.add(sequence)
                if sequence.generated == 1:
                    happened.append((FIRST_TOKEN, sequence.tag))
                if sequence.generated == sequence.output:
                    happened.append((FINISHED, sequence.tag))
                    self.leave(sequence)
        return happened


def drawn_model(rng: Random) -> EngineModel:
    return EngineModel(
        prefill=rng.uniform(50, 2000),
        chunk=rng.randint(8, 60),
        base=rng.uniform(0.01, 0.2),
        per_sequence=rng.choice([0.0, 0.01]),
        block_tokens=rng.choice([1, 3, 4, 16]),
        kv_blocks=rng.randint(60, 200) // rng.choice([1, 4]),
        max_batch=rng.randint(1, 8),
    )


def drawn_sequence(rng: Random, model: EngineModel, tag: int) -> Sequence:
    tokens = rng.randint(1, max(1, model.longest // 2))
    output = rng.randint(1, min(60, model.longest - tokens))
    family, common = rng.randint(0, 2), rng.randint(0, 20)
    keys = [family * 1000 + i if i < common else tag * 1000 + 100000 + i for i in range(tokens)]
    return Sequence(keys[: tokens // model.block_tokens], tokens, output, tag)


@pytest.mark.parametrize("seed", range(60))
def test_runs_equal_single_steps(seed: int) -> None:
    rng = Random(seed)
    model = drawn_model(rng)
    engine, reference = Engine(model), Reference(model)
    twins: list[tuple[Sequence, Sequence]] = []
    happened: list[tuple[float, int, object]] = []
    expected: list[tuple[float, int, object]] = []
    now, step_ends = 0.0, inf
    for tag in range(60):
        now += rng.expovariate(1.0) * rng.choice([0.1, 1.0, 5.0])
        while step_ends <= now:
            expected += [(step_ends, *one) for one in reference.end()]
            step_ends += reference.begin() or inf
        happened += [(event.at, event.kind, event.sequence.tag) for event in engine.advance(now)]
        if twins and rng.random() < 0.3:
            one, other = rng.choice(twins)
            engine.cancel(one, now)
            reference.cancel(other)
        else:
            state = rng.getstate()
            one = drawn_sequence(rng, model, tag)
            rng.setstate(state)
            other = drawn_sequence(rng, model, tag)
            engine.submit(one, now)
            reference.waiting.append(other)
            twins.append((one, other))
        if step_ends == inf:
            step_ends = now + (reference.begin() or inf)
        assert (engine.running, engine.waiting) == (len(reference.running), len(reference.waiting))
        assert engine.kv_usage(now) * model.kv_blocks == pytest.approx(reference.used())
        assert [engine.generated_by(one, now) for one, _ in twins] == [two.generated for _, two in twins]
    while step_ends < inf:
        expected += [(step_ends, *one) for one in reference.end()]
        step_ends += reference.begin() or inf
    happened += [(event.at, event.kind, event.sequence.tag) for event in engine.advance(1e9)]
    assert [one[1:] for one in happened] == [one[1:] for one in expected]
    assert [one[0] for one in happened] == pytest.approx([one[0] for one in expected])
    assert [one.cached for one, _ in twins] == [two.cached for _, two in twins]
    assert (engine.preemptions, engine.kv_usage(1e9), engine.next_at) == (reference.preemptions, 0.0, inf)
