"""The policy in force, and who stands in for it.

Rule of this file: whatever a policy does wrong is counted and said, and no request pays for it. Hooks that it does not
have cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from policies.insight.explanation import Trace, pass_on
from policies.policy import Policy
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import RequestFacts

Pick = Callable[[RequestFacts, Available, float], EndpointState]


class ActivePolicy:
    """A policy, its hooks, and the `fallback`.

    `demoted` counts the picks that the fallback had to make, `last_fault` says in words what the policy last did
    wrong. `trace` is where reasons are noted while somebody asks for them. `pick`, `observe`, `probes` and the
    others are to be asked for again after `install` and `explain`; all but `pick` are None where the policy has no such
    hook.
    """

    def __init__(self, policy: Policy, fallback: Policy) -> None:
        self._fallback = fallback
        self.demoted = 0
        self.last_fault: str | None = None
        self.trace: Trace | None = None
        self.install(policy)

    def install(self, policy: Policy) -> None:
        """From now on this one."""
        self.policy = policy
        self.keeps_to_regions = bool(getattr(policy, "keeps_to_regions", False))
        self.observe: Callable[..., None] | None = getattr(policy, "observe", None)
        self.tick: Callable[..., None] | None = getattr(policy, "tick", None)
        self.probes: Callable[..., Sequence[EndpointState]] | None = getattr(policy, "probes", None)
        self.observe_probe: Callable[..., None] | None = getattr(policy, "observe_probe", None)
        self.explain(self.trace)

    def explain(self, trace: Trace | None) -> None:
        """Note reasons there from now on; None: nowhere."""
        self.trace = trace
        for policy in (self.policy, self._fallback):
            pass_on(policy, trace)
        self.pick: Pick = self.policy.pick if trace is None else self._pick_and_tell

    def _pick_and_tell(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        trace = self.trace
        assert trace is not None
        trace.begin(facts, len(available), now)
        state = self.policy.pick(facts, available, now)
        if state.is_listed:
            trace.end(state, now)
        return state

    def announce(self, states: Sequence[EndpointState], now: float) -> None:
        """Endpoints have come, gone or changed their weight, or the policy is new to them."""
        members_changed = getattr(self.policy, "members_changed", None)
        if members_changed is not None:
            self.call(members_changed, states, now)

    def call(self, hook: Callable[..., None], *arguments: Any) -> None:
        """A hook that raises is a fault of the policy, not of the request."""
        try:
            hook(*arguments)
        except Exception as fault:
            self._note(f"raised {fault!r} in {getattr(hook, '__name__', hook)}")

    def demote(
        self, facts: RequestFacts, available: Available, now: float, reason: str, fault: str
    ) -> EndpointState:
        """Whom the fallback picks, because of that fault."""
        self.demoted += 1
        self._note(fault)
        trace = self.trace
        if trace is not None:
            trace.note(reason)
        try:
            state = self._fallback.pick(facts, available, now)
        except Exception:  # the fallback is replaceable too; no request pays for that
            state = available[0]
        if trace is not None:
            trace.end(state, now)
        return state

    def _note(self, fault: str) -> None:
        self.last_fault = f"{type(self.policy).__name__} {fault}"
