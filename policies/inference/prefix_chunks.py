"""vLLM production-stack's rule: an endpoint at which the longest prefix was seen before, whatever waits there.

vllm-project/production-stack, `routers/routing_logic.py` and `prefix/hashtrie.py` (August 2026): the longest match of
chunks of 128 characters, of its holders one at random. If fewer than `prefix_min_match_length` characters match, the
endpoint with the lowest rate of requests in the last minute. It has no term for load and never forgets a chunk. So one
system prompt that all requests share sends all of them to the endpoint that had it first, and of long requests the
busiest endpoint has the lowest rate. It is here for comparison.

Chunks are the blocks of the prompt. What does not fit into the prefix index is forgotten.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Annotated, Final

from policies.endpoint.per_endpoint import PerEndpoint
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.inference.rule import InferenceRule
from policies.inference.tokens import EndpointTokens
from policies.options import at_least
from policies.prompts import BYTES_PER_TOKEN, Prompt

LONGEST_MATCH = "longest-match"
"""Reason: the most blocks of the prompt were sent there before. Scores are the blocks that were not."""

LOWEST_RATE = "lowest-rate"
"""Reason: too little of the prompt was sent to any, so the lowest rate. Scores are requests in the last minute."""

ENDLESS: Final = 1e15
"""Tokens of a cache that forgets nothing."""

WINDOW_S: Final = 60.0
"""Seconds over which the rate of requests is taken."""


class PrefixChunks(InferenceRule):
    """An endpoint at which the longest prefix was seen before, without regard to load (production-stack)."""

    def __init__(
        self,
        rng: Random,
        *,
        prefix_min_match_length: Annotated[
            float, "characters below which the lowest rate of requests decides", at_least(0)
        ] = 0.0,
    ) -> None:
        super().__init__(rng, ENDLESS, corrects=False)
        self._least = prefix_min_match_length
        self._sent: PerEndpoint[deque[float]] = PerEndpoint(deque)

    def assigned(self, state: EndpointState, facts: RequestFacts, now: float) -> None:
        """Count a prompt in, and the request where the lowest rate may decide."""
        super().assigned(state, facts, now)
        if self._least:
            self._sent[state].append(now)

    def choose(self, accounts: list[EndpointTokens], prompt: Prompt, now: float) -> EndpointState:
        """Pick a holder of the longest match."""
        longest = max(each.held for each in accounts)
        if longest * prompt.block_tokens * BYTES_PER_TOKEN < self._least:
            return self.least(accounts, [self._rate(each.state, now) for each in accounts], LOWEST_RATE)
        missing = [float(len(prompt.blocks) - each.held) for each in accounts]
        return self.least(accounts, missing, LONGEST_MATCH)

    def _rate(self, state: EndpointState, now: float) -> float:
        """Return the requests of the last minute."""
        sent = self._sent[state]
        while sent and now - sent[0] >= WINDOW_S:
            sent.popleft()
        return float(len(sent))
