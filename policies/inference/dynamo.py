"""Dynamo's rule: blocks to compute, less those that are cached, plus blocks in the KV cache.

NVIDIA Dynamo, `lib/kv-router/src/scheduling/selector/default.rs` (2026), without tiers of host memory and disk, and
without a temperature, which is 0 there:

    cost = scale · max(0, prefill − credit · overlap) + decode + weight · requests

`prefill` are the blocks of the prompt and those that wait there, `overlap` the blocks of the prompt that are cached
there, `decode` the blocks of all prompts there and of this one; what prompts have in common is counted for each.
"""

from __future__ import annotations

from random import Random
from typing import Annotated

from policies.endpoint.state import EndpointState
from policies.inference.rule import Capacity, InferenceRule
from policies.inference.tokens import CAPACITY, EndpointTokens
from policies.options import at_least, between
from policies.prompts import Prompt

LEAST_BLOCKS = "least-blocks"
"""Reason: the fewest blocks to compute and in the KV cache. Scores are blocks."""


class Dynamo(InferenceRule):
    """The fewest blocks to compute, less cached ones, plus blocks in the KV cache (NVIDIA Dynamo)."""

    def __init__(
        self,
        rng: Random,
        *,
        overlap_score_credit: Annotated[float, "part of a cached block that is free", between(0, 1)] = 1.0,
        prefill_load_scale: Annotated[float, "weight of blocks to compute", at_least(0)] = 1.0,
        decode_active_request_weight: Annotated[float, "blocks per request there", at_least(0)] = 0.0,
        capacity: Capacity = CAPACITY,
    ) -> None:
        super().__init__(rng, capacity)
        self._credit = overlap_score_credit
        self._scale = prefill_load_scale
        self._per_request = decode_active_request_weight

    def choose(self, accounts: list[EndpointTokens], prompt: Prompt, now: float) -> EndpointState:
        """Pick the endpoint of the least cost."""
        return self.least(
            accounts, [self._cost(each, prompt.block_tokens) for each in accounts], LEAST_BLOCKS
        )

    def _cost(self, each: EndpointTokens, block: float) -> float:
        tokens = each.added + each.cached
        prefill = max(0.0, each.waiting + tokens - self._credit * each.cached) / block
        return (
            self._scale * prefill
            + (each.resident + tokens) / block
            + self._per_request * each.state.in_flight
        )
