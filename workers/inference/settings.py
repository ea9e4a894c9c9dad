"""Model of an engine, and the settings of a server in front of one. All durations in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True)
class EngineModel:
    """What an engine computes per second and holds. A step takes `base + per_sequence · sequences that decode +
    prompt tokens / prefill` seconds.

    `prefill`: prompt tokens per second. `chunk`: most tokens of a step. `max_batch`: most sequences at a time.
    `max_waiting`: one more is refused; None: never. `kv_blocks` blocks of `block_tokens` tokens are the KV cache.
    Defaults of chunk, max_batch and block_tokens are vLLM's; the cache holds 512 000 tokens.
    """

    prefill: float = 8000.0
    chunk: int = 2048
    base: float = 0.010
    per_sequence: float = 0.0001
    block_tokens: int = 16
    kv_blocks: int = 32_000
    max_batch: int = 256
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.prefill < inf or not 0 < self.base < inf or not 0 <= self.per_sequence < inf:
            raise ValueError("prefill and base must be above 0, per_sequence at least 0")
        if self.block_tokens < 1 or self.kv_blocks < 1:
            raise ValueError("block_tokens and kv_blocks must be at least 1")
        if not 1 <= self.max_batch <= self.chunk:
            raise ValueError(f"max_batch must be from 1 to chunk ({self.chunk}), not {self.max_batch}")
        if self.max_waiting is not None and self.max_waiting < 1:
            raise ValueError(f"max_waiting must be at least 1, not {self.max_waiting}")

    @property
    def longest(self) -> int:
        """Most tokens of a prompt and its answer: what the KV cache holds."""
        return self.kv_blocks * self.block_tokens


@dataclass(frozen=True)
class InferenceSettings:
    """Settings of a server. `tokens`: the span from which the length of an answer is drawn, which max_tokens bounds.
    `busy_status` refuses a request when the queue is full.
    """

    engine: EngineModel = field(default_factory=EngineModel)
    model: str = "emulated"
    tokens: tuple[int, int] = (64, 64)
    busy_status: int = 503
