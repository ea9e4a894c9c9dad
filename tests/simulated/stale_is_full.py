"""A rule that fails: an engine whose report is old counts as full (llm-d-router, issue 2514)."""

from __future__ import annotations

from policies.endpoint.state import EndpointState
from policies.errors import Overloaded
from policies.inference.llm_d import LlmD
from policies.inference.tokens import EndpointTokens
from policies.prompts import Prompt

FRESH_S = 0.2
"""Seconds for which a report counts."""


class StaleIsFull(LlmD):
    """llm-d's rule among the engines with a fresh report; no engine has room where none has one."""

    def choose(self, accounts: list[EndpointTokens], prompt: Prompt, now: float) -> EndpointState:
        """Pick among the engines that reported lately. Raises Overloaded."""
        fresh = [each for each in accounts if now - each.reported_at < FRESH_S]
        if not fresh:
            raise Overloaded
        return super().choose(fresh, prompt, now)
