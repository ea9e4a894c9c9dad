"""The table `[inference]` of a scenario: inference engines as workers, and the prompts of their requests.

Regions then hold engines, the load gives the instants, and `load.file` may be a trace with prompts.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from balancer.config.schema.section import InSeconds
from experiments.scenario.table import Duration, Model, Rate
from workers.inference.engine import EngineModel

Tokens = Annotated[int, Field(ge=0, le=1_000_000)]
StepTime = Annotated[float, Field(ge=0, le=10), InSeconds]


class PromptMix(Model):
    """Synthetic prompts. Each begins with one of the system prompts, then has a conversation, then what is asked.

    Lengths are lognormal with the stated means. The turns of a conversation come at the load's instants, each at least
    half of `open` requests after the one before.
    """

    shared: Tokens = Field(default=0, description="tokens of a system prompt")
    systems: int = Field(
        default=1, ge=1, le=10_000, description="system prompts; the n-th is asked for 1/n times as often"
    )
    turns: float = Field(default=1.0, ge=1, le=1000, description="requests of a conversation, on average")
    open: int = Field(default=100, ge=1, le=100_000, description="conversations at a time")
    input: int = Field(default=1000, ge=1, le=1_000_000, description="tokens that a request adds, mean")
    output: int = Field(default=200, ge=1, le=100_000, description="tokens of an answer, mean")
    sigma: float = Field(default=0.8, ge=0, le=3, description="standard deviation of the lengths' logarithm")


MIXES = {
    "conversations": PromptMix(shared=400, turns=8, open=200, input=250, output=300),
    "system-prompt": PromptMix(shared=6000, input=400),
    "agents": PromptMix(shared=12_000, systems=12, turns=15, open=60, input=900, output=120),
    "distinct": PromptMix(input=5000, sigma=0.5),
    "mixed": PromptMix(shared=300, input=3000, output=250, sigma=1.8),
}
"""Mixes of prompts by name."""


def mix_named(value: object) -> object:
    """Expand the name of a mix. Raises `ValueError`."""
    if isinstance(value, str):
        if value not in MIXES:
            raise ValueError(f"must be a table, or one of {', '.join(MIXES)}, got {value!r:.60}")
        return MIXES[value]
    return value


class Inference(Model):
    """Engines and prompts. A step of an engine takes `base`, and time for its answers and its tokens of prompts."""

    prompts: Annotated[PromptMix | None, BeforeValidator(mix_named)] = Field(
        default=None, description="a mix by name, or a table of its own; None: those of the trace load.file"
    )
    tpot_slo: Duration = Field(
        default=0.1,
        description="seconds per output token that goodput allows, beside `slo` for the first one",
    )
    prefill: Rate = Field(default=8000.0, description="tokens of prompts that an engine computes per second")
    chunk: int = Field(default=2048, ge=1, le=1_000_000, description="most tokens of a step")
    base: StepTime = Field(default=0.01, gt=0, description="seconds of a step, without its tokens")
    per_sequence: StepTime = Field(
        default=0.0001, description="seconds that each answer in the batch adds to a step"
    )
    kv_tokens: int = Field(default=512_000, ge=1024, le=10**9, description="tokens that the KV cache holds")
    max_batch: int = Field(
        default=256, ge=1, le=100_000, description="requests that an engine computes at a time"
    )
    max_waiting: int | None = Field(
        default=None,
        ge=1,
        le=10**7,
        description="requests that wait at an engine, more get 503; None: no bound",
    )

    def engine(self, block_tokens: int, speed: float) -> EngineModel:
        """Model of an engine of this relative speed, for prompts in blocks of so many tokens. Raises `ValueError`."""
        return EngineModel(
            prefill=self.prefill * speed,
            chunk=self.chunk,
            base=self.base / speed,
            per_sequence=self.per_sequence / speed,
            block_tokens=block_tokens,
            kv_blocks=self.kv_tokens // block_tokens,
            max_batch=self.max_batch,
            max_waiting=self.max_waiting,
        )

    @model_validator(mode="after")
    def makes_engines(self) -> Self:
        self.engine(1, 1.0)
        return self
