"""Base of the rules for inference servers: their options and hooks, and the choice of the least cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, repeat
from operator import le
from random import Random
from typing import Annotated

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts
from policies.inference.tokens import EndpointTokens, TokenAccounts
from policies.inference.units import UnitPrompts
from policies.insight.explanation import ONLY_ONE, Parts, Trace
from policies.options import above
from policies.prompts import Prompt
from policies.selection.two_choices import less_loaded_of_two

Capacity = Annotated[
    float, "tokens that the KV cache of an endpoint is assumed to hold until it is known better", above(0)
]


class InferenceRule:
    """Base class: a subclass implements `choose`. A request without a prompt goes to the less loaded of two.

    Hooks and accounts are those of `tokens.py`. Rules that judge no failures skip an endpoint with the probability of
    its failure penalty, because failures are fast, and an endpoint that fails would seem idle.
    """

    reads_prompts = True
    judges_failures = False
    trace: Trace | None = None

    def __init__(self, rng: Random, capacity: float, corrects: bool = True) -> None:
        self._random = rng.random
        self.accounts = accounts = TokenAccounts(capacity, corrects)
        # The compiled methods themselves: a hook costs no further call. A method of the rule here would be a cycle.
        self.first_token = accounts.first_token
        self.observe = accounts.observe
        self.observe_probe = accounts.observe_probe
        units = UnitPrompts(accounts)
        self.report_prompts, self.hear_prompts = units.report, units.hear
        self.members_changed = accounts.members_changed
        self.tick = accounts.tick
        self.share_prompts = accounts.share

    def assigned(self, state: EndpointState, facts: RequestFacts, now: float) -> None:
        """Count a prompt in."""
        self.accounts.assigned(state, facts, now)

    def choose(self, accounts: list[EndpointTokens], prompt: Prompt, now: float) -> EndpointState:
        """Pick one of two or more endpoints."""
        raise NotImplementedError

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick an endpoint in O(n · log of the prompt's blocks)."""
        prompt = facts.prompt
        if prompt is None:
            return less_loaded_of_two(available, self._random, now, self.trace)
        offered = available if self.judges_failures else self._healthy(available, now)
        if len(offered) == 1:
            if self.trace is not None:
                self.trace.note(ONLY_ONE, offered)
            return offered[0]
        return self.choose(self.accounts.look(prompt, offered, now), prompt, now)

    def _healthy(self, available: Available, now: float) -> Sequence[EndpointState]:
        if not any(state.latency.failures for state in available):
            return available
        return [state for state in available if self._random() >= state.failure_penalty(now)] or available

    def least(
        self,
        accounts: Sequence[EndpointTokens],
        costs: Sequence[float],
        reason: str,
        parts: Sequence[Parts] = (),
        noise: float = 0.0,
    ) -> EndpointState:
        """Return the endpoint of the least cost, of equals, whose costs differ by up to `noise`, one at random."""
        if self.trace is not None:
            self.trace.note(reason, [account.state for account in accounts], costs, parts)
        equals = list(compress(accounts, map(le, costs, repeat(min(costs) + noise))))
        return equals[int(self._random() * len(equals)) if len(equals) > 1 else 0].state
