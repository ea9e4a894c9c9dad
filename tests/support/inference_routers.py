"""A router with a rule for inference servers, driven by hand: prompts, first tokens, answers."""

from __future__ import annotations

from random import Random
from typing import Any

from policies import Endpoint, EndpointState, Router, registry
from policies.contract import ManualClock
from policies.facts import Outcome, OutcomeKind, RequestFacts
from policies.inference.rule import InferenceRule
from policies.inference.tokens import EndpointTokens
from policies.prompts import Answer, Prompt
from policies.routing.assignment import Assignment
from tests.support.traces import last, traced

BLOCK = 128.0
"""Tokens of a block, as the balancer makes them."""


def blocks(*texts: str) -> list[int]:
    """Chained hashes of blocks: equal beginnings have equal hashes."""
    return [Random("/".join(texts[: end + 1])).getrandbits(64) for end in range(len(texts))]


def prompt_of(hashes: list[int], more: float = 0.0, **keys: Any) -> Prompt:
    """A streamed prompt of these blocks and `more` tokens."""
    return Prompt(len(hashes) * BLOCK + more, hashes, BLOCK, **{"is_streamed": True, **keys})


class Driven:
    """Endpoints "e0", "e1", … under the rule `name`."""

    def __init__(self, name: str, size: int = 2, seed: int = 1, **options: Any) -> None:
        self.clock = ManualClock()
        self.clock.time = 1000.0
        members = [Endpoint(f"e{number}", f"http://e{number}", "here") for number in range(size)]
        policy = registry.make(name, options, Random(seed))
        assert isinstance(policy, InferenceRule)
        self.policy = policy
        self.router = Router(members, policy, self.clock, Random(seed))
        self.trace = traced(self.router)

    def account(self, number: int) -> EndpointTokens:
        """The account of an endpoint as of now."""
        [found] = self.policy.accounts.look(Prompt(1.0), [self.router.states[number]], self.clock.time)
        return found

    def place(self, number: int, prompt: Prompt) -> Assignment:
        """Send a prompt to an endpoint, whatever the rule says."""
        others = frozenset(state.id for state in self.router.states if state.order != number)
        assignment = self.router.route(RequestFacts(prompt=prompt, tried=others))
        assert assignment.state.order == number
        return assignment

    def pick(self, prompt: Prompt) -> EndpointState:
        """Where the rule would send a prompt now; nothing is counted in."""
        assert self.router.fallback_picks == 0, self.router.last_fault
        return self.router.active.pick(RequestFacts(prompt=prompt), self.router.available, self.clock.time)

    def picks(self, prompt: Prompt, times: int = 40) -> set[str]:
        """The endpoints of several picks of the same prompt."""
        return {self.pick(prompt).id for _ in range(times)}

    def scores(self, prompt: Prompt) -> list[float]:
        """The scores of all endpoints for a prompt."""
        self.pick(prompt)
        return list(last(self.trace).steps[-1].scores)

    def answer(
        self,
        assignment: Assignment,
        tokens: int = 100,
        cached: int | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        """First token now, and the whole answer."""
        self.router.first_token(assignment, self.clock.time)
        answer = Answer()
        answer.tokens, answer.cached_tokens, answer.prompt_tokens = tokens, cached, prompt_tokens
        self.end(assignment, answer=answer)

    def end(
        self,
        assignment: Assignment,
        kind: OutcomeKind = OutcomeKind.OK,
        answer: Answer | None = None,
        status: int | None = None,
    ) -> None:
        """End an attempt now, by default with status 200 if it is a good end."""
        now, status = self.clock.time, status or (200 if kind is OutcomeKind.OK else None)
        prompt = assignment.facts.prompt
        first = now if status else None
        outcome = Outcome(kind, status, assignment.routed_at, first, now, prompt=prompt, answer=answer)
        self.router.settle(assignment, outcome)
        assert self.router.last_fault is None, self.router.last_fault
