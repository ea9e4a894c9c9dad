"""LMetric: the tokens to compute at an endpoint times the requests there.

Zhang and others, "LMetric: Simple is Better - Multiplication May Be All You Need for LLM Request Scheduling",
arXiv 2603.15202, March 2026: new prefill tokens, with those that wait, × batch size. The request itself is counted in
the batch, as otherwise every idle endpoint would cost nothing, whatever it has cached.
"""

from __future__ import annotations

from random import Random

from policies.endpoint.state import EndpointState
from policies.inference.rule import Capacity, InferenceRule
from policies.inference.tokens import CAPACITY, EndpointTokens
from policies.prompts import Prompt

LEAST_PRODUCT = "least-product"
"""Reason: the fewest tokens to compute times requests. The score is that product."""


class LMetric(InferenceRule):
    """The least product of the tokens to compute, with those that wait there, and the requests there (LMetric)."""

    def __init__(self, rng: Random, *, capacity: Capacity = CAPACITY) -> None:
        super().__init__(rng, capacity)

    def choose(self, accounts: list[EndpointTokens], prompt: Prompt, now: float) -> EndpointState:
        """Pick the endpoint of the least product."""
        costs = [(each.waiting + each.added) * (each.state.in_flight + 1) for each in accounts]
        return self.least(accounts, costs, LEAST_PRODUCT)
