"""vllm-router's rule: the longest cached prefix while loads are balanced, else the fewest requests.

vllm-router, `src/policies/cache_aware.rs` (November 2026). Where the most requests in flight exceed the fewest by more
than `balance_abs_threshold` and by a factor of more than `balance_rel_threshold`, the fewest requests win. Otherwise a
session goes where its last request went; then the endpoint with the longest cached prefix wins if that is more than
`cache_threshold` of the prompt; else the fewest requests. SMG has the same rule and defaults.

Deviations: the cached prefix is that of the prefix index, instead of a tree of characters that is cut to size every 120
s; a session is forgotten with its blocks; of equal endpoints one is taken at random.
"""

from __future__ import annotations

from random import Random
from typing import Annotated

from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.inference.rule import Capacity, InferenceRule
from policies.inference.tokens import CAPACITY, EndpointTokens
from policies.options import at_least, between
from policies.prompts import Prompt
from policies.selection import hashing

FEWEST_UNBALANCED = "unbalanced-fewest-requests"
"""Reason: loads are not balanced, so the fewest requests. Scores are requests in flight per weight."""

ITS_SESSION = "its-session"
"""Reason: the endpoint of the session's last request. Scores are 0 there, 1 elsewhere."""

LONGEST_PREFIX = "longest-prefix"
"""Reason: the largest cached share of the prompt. Scores are the shares that are not cached."""

FEWEST_REQUESTS = "fewest-requests"
"""Reason: too little of the prompt is cached anywhere, so the fewest requests. Scores are requests in flight per
weight."""


class CacheAware(InferenceRule):
    """The session's endpoint, the longest cached prefix, or the fewest requests if unbalanced (vllm-router)."""

    def __init__(
        self,
        rng: Random,
        *,
        cache_threshold: Annotated[
            float, "share of the prompt above which a cached prefix decides", between(0, 1)
        ] = 0.3,
        balance_abs_threshold: Annotated[
            float, "difference of requests in flight above which loads are unbalanced", at_least(0)
        ] = 64.0,
        balance_rel_threshold: Annotated[
            float, "and the ratio of requests in flight above which they are", at_least(0)
        ] = 1.5,
        capacity: Capacity = CAPACITY,
    ) -> None:
        super().__init__(rng, capacity)
        self._share = cache_threshold
        self._difference = balance_abs_threshold
        self._ratio = balance_rel_threshold

    def assigned(self, state: EndpointState, facts: RequestFacts, now: float) -> None:
        """Count the prompt in, and record its session in the index as if it were a block."""
        super().assigned(state, facts, now)
        if facts.prompt is not None and facts.prompt.session:
            self.accounts.send_key(state, facts.prompt, hash_of_session(facts.prompt))

    def choose(self, accounts: list[EndpointTokens], prompt: Prompt, now: float) -> EndpointState:
        """Pick by session and prefix if loads are balanced, else by requests in flight."""
        counts = [each.state.in_flight for each in accounts]
        loads = [each.state.in_flight / each.state.weight for each in accounts]
        most, fewest = max(counts), min(counts)
        if most - fewest > self._difference and most > self._ratio * fewest:
            return self.least(accounts, loads, FEWEST_UNBALANCED)
        if prompt.session:
            session = hash_of_session(prompt)
            elsewhere = [self.accounts.index.depth([session], each.place) == 0 for each in accounts]
            if not all(elsewhere):
                return self.least(accounts, elsewhere, ITS_SESSION)
        blocks = max(1, len(prompt.blocks))
        missing = [1.0 - each.held / blocks for each in accounts]
        if 1.0 - min(missing) > self._share:
            return self.least(accounts, missing, LONGEST_PREFIX)
        return self.least(accounts, loads, FEWEST_REQUESTS)


def hash_of_session(prompt: Prompt) -> int:
    """Return the hash by which a session is found in the prefix index."""
    return hashing.of_name(f"{prompt.model}\0{prompt.session}")
