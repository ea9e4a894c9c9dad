"""Pending tokens: the endpoint at which the first token is expected soonest.

A sum in seconds decides, of what is known without any report of the endpoints:

    wait + prefill + pauses + balance − idle + overdue + distance + failure

The wait is for prompts that were sent there and have no first token, prefill for the tokens of this one that are not
cached there, both at the pace measured there (`pace.py`); of the prompt that is being computed, the part counts that is
left by then. Prefill makes answers pause (PAUSE_PRICE, BALANCE_PRICE), and costs less where nothing waits
(IDLE_DISCOUNT). Where a prompt takes three times as long as expected, the endpoint may hang, and is expected to for as
long again. The constants are in `first_token.py`.
"""

from __future__ import annotations

from random import Random
from typing import Final

from policies.endpoint.state import EndpointState
from policies.inference.first_token import PARTS, costs_of, named_parts
from policies.inference.rule import Capacity, InferenceRule
from policies.inference.tokens import CAPACITY, EndpointTokens
from policies.prompts import Prompt

SOONEST: Final = "soonest-first-token"
"""Reason: the first token is expected soonest. Scores are seconds."""

NOISE: Final = 0.0005
"""Seconds by which costs of equal endpoints differ, as handshakes in one network do. A block takes longer."""


class PendingTokens(InferenceRule):
    """The soonest first token: tokens that wait there and that the prompt adds, at the measured pace, and distance."""

    judges_failures = True
    cost_parts = PARTS

    def __init__(self, rng: Random, *, capacity: Capacity = CAPACITY) -> None:
        super().__init__(rng, capacity)

    def choose(self, accounts: list[EndpointTokens], prompt: Prompt, now: float) -> EndpointState:
        """Pick the endpoint of the least expected seconds."""
        pace = self.accounts.pace
        parts = () if self.trace is None else named_parts(accounts, pace, now)
        return self.least(accounts, costs_of(accounts, pace, now), SOONEST, parts, NOISE)
