"""Prompts of a run: those of a trace, or synthetic ones. Pure functions of the scenario and the seed of a block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final

import numpy as np

from experiments.errors import BadInputError
from experiments.recorded.inference_trace import LOG_BLOCK, Prompts, is_trace, read_trace
from experiments.run_data import Ints
from experiments.scenario.inference import PromptMix
from experiments.scenario.scenario import Scenario
from experiments.scenario.streams import stream
from workers.inference.engine import EngineModel

MAX_CONTEXT: Final = 128_000
"""Tokens beyond which a synthetic conversation ends."""


@dataclass(slots=True)
class Conversation:
    """A conversation so far: `blocks` of its prompts and answers, `tokens` in all."""

    name: str
    blocks: list[int]
    tokens: int


def prompts_of(scenario: Scenario, count: int, seed: int) -> Prompts:
    """Prompts of the `count` requests of a run, in their order. Raises `BadInputError`."""
    asked, file = scenario.inference, scenario.load.file or ""
    assert asked is not None
    if asked.prompts is not None:
        return synthetic(asked.prompts, count, seed)
    if not is_trace(file):
        raise BadInputError(f"load.file: {file} holds no prompts; state inference.prompts")
    return read_trace(file).prompts


def models_of(scenario: Scenario, prompts: Prompts) -> list[EngineModel]:
    """Engines in the order of the scenario's workers. Raises `BadInputError` if a request needs a larger cache."""
    asked = scenario.inference
    assert asked is not None
    longest = max(map(sum, zip(prompts.tokens, prompts.output, strict=True)), default=0)
    models = [
        asked.engine(prompts.block_tokens, region.speed_of(number))
        for region, number in scenario.numbered_workers
    ]
    if longest > models[0].longest:
        raise BadInputError(
            f"inference.kv_tokens: must be at least {longest}, which the longest request takes"
        )
    return models


@lru_cache(maxsize=2)
def synthetic(mix: PromptMix, count: int, seed: int) -> Prompts:
    """`count` prompts of a mix, the same for all entries of a block."""
    numbers, random = stream("requests", seed), Random(seed)
    asked, answered = (
        lengths(mix.input, mix.sigma, count, numbers),
        lengths(mix.output, mix.sigma, count, numbers),
    )
    weights = 1.0 / np.arange(1, mix.systems + 1)
    which = numbers.choice(mix.systems, count, p=weights / weights.sum()).tolist()
    systems = [fresh_blocks(mix.shared // LOG_BLOCK, random) for _ in range(mix.systems)]
    open_ones: list[Conversation] = []
    found = Prompts([], [], [], [], LOG_BLOCK)
    for more, output, system in zip(asked.tolist(), answered.tolist(), which, strict=True):
        one = None
        if len(open_ones) == mix.open:
            one = open_ones.pop(random.randrange(mix.open // 2 + 1))
            if random.random() * mix.turns < 1 or one.tokens + more > MAX_CONTEXT:
                one = None
        one = one or Conversation(f"session-{len(found.tokens)}", list(systems[system]), mix.shared)
        grow(one, more, random)
        found.append(one.tokens, output, one.blocks.copy(), one.name)
        grow(one, output, random)
        open_ones.append(one)
    return found


def grow(one: Conversation, tokens: int, random: Random) -> None:
    """Append tokens to a conversation, in blocks that no other has."""
    one.tokens += tokens
    one.blocks += fresh_blocks(one.tokens // LOG_BLOCK - len(one.blocks), random)


def fresh_blocks(count: int, random: Random) -> list[int]:
    return [random.getrandbits(64) for _ in range(count)]


def lengths(mean: float, sigma: float, count: int, numbers: np.random.Generator) -> Ints:
    """Lognormal lengths with this mean, at least 1 and at most `MAX_CONTEXT`."""
    drawn = mean * np.exp(numbers.normal(0.0, sigma, count) - sigma**2 / 2)
    return np.clip(np.rint(drawn), 1, MAX_CONTEXT).astype(np.int64)
