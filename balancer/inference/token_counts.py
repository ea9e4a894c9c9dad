"""Counts of prompts and answers of one cluster, for metrics and status."""

from __future__ import annotations

from policies.prompts import Answer, Prompt
from policies.stats.load import Histogram


class TokenCounts:
    """Totals since the start: prompts that were read, tokens of prompts and of answers to them, and two latencies.

    `ttft` is the time to first token, from the arrival of the request; `tpot` the time per output token after it. Of
    prompts, tokens are those that the answers' `usage` states, or an estimate; of these `cached` are stated to be.
    `unread` answers had a Content-Encoding.
    """

    def __init__(self) -> None:
        self.prompts = 0
        self.unread = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.ttft = Histogram()
        self.tpot = Histogram()

    def add(self, prompt: Prompt, answer: Answer) -> None:
        """Add an answer that has begun, whole or not."""
        stated = answer.prompt_tokens
        self.prompt_tokens += round(prompt.tokens) if stated is None else stated
        self.cached_tokens += answer.cached_tokens or 0
        self.output_tokens += answer.tokens
        tpot = answer.tpot
        if tpot is not None:
            self.tpot.record(tpot)
