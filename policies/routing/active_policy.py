"""The active policy, its optional hooks and the fallback policy.

A fault of the policy is counted and reported and must not fail a request. Hooks that a policy does not have cost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.errors import place_of_pick, raised
from policies.facts import NONE_TRIED, RequestFacts
from policies.health.priority_levels import LevelTurns, Loads
from policies.insight.explanation import Trace, set_trace
from policies.policy import Policy
from policies.prompts import PromptReport
from policies.selection.two_choices import TwoChoices

Pick = Callable[[RequestFacts, Available, float], EndpointState]

MEASURED_PICKS: Final = 1000
"""Picks whose CPU time is measured after one that took too long by the clock: the machine may have been busy."""


class ActivePolicy:
    """A policy with its hooks, and the fallback, the less loaded of two endpoints.

    `fallback_picks` counts the fallback picks of the policy in force, `last_fault` describes its last fault,
    `pick_fault` and `hook_fault` the last at a pick and in another hook; `installations` is the number of policies so
    far, the one in force included.
    `trace` records explanations, if set. `pick` must be read for each call, `observe`, `probes` and the other hooks
    again after `install`; all but `pick` are None where the policy has no such hook.
    """

    def __init__(self, policy: Policy, rng: Random, cpu: Callable[[], float]) -> None:
        self._fallback = TwoChoices(rng.random)
        self._cpu = cpu
        self.installations = self.fallback_picks = self._earlier_fallback_picks = 0
        self.last_fault: str | None = None
        self.pick_fault: str | None = None
        self.hook_fault: str | None = None
        self.trace: Trace | None = None
        self._loads: Loads = {}
        self._turns = LevelTurns()
        self._others: dict[int, frozenset[str]] = {}  # by priority, the members of other levels
        self.install(policy)

    def install(self, policy: Policy) -> None:
        """Make `policy` the active one, look up its hooks, and begin its count of faults."""
        self.policy = policy
        self.installations += 1
        self._earlier_fallback_picks += self.fallback_picks
        self.fallback_picks = 0
        self.last_fault = self.pick_fault = self.hook_fault = None
        self.keeps_to_regions = bool(getattr(policy, "keeps_to_regions", False))
        self.observe: Callable[..., None] | None = getattr(policy, "observe", None)
        self.tick: Callable[..., None] | None = getattr(policy, "tick", None)
        self.probes: Callable[..., Sequence[EndpointState]] | None = getattr(policy, "probes", None)
        self.observe_probe: Callable[..., None] | None = getattr(policy, "observe_probe", None)
        self.assigned: Callable[..., None] | None = getattr(policy, "assigned", None)
        self.first_token: Callable[..., None] | None = getattr(policy, "first_token", None)
        self.report_prompts: Callable[..., PromptReport | None] | None = getattr(
            policy, "report_prompts", None
        )
        self.hear_prompts: Callable[..., None] | None = getattr(policy, "hear_prompts", None)
        self.reads_prompts = bool(getattr(policy, "reads_prompts", False))
        self._doubts: Callable[[EndpointState], bool] | None = getattr(policy, "doubts", None)
        self.explain(self.trace)

    @property
    def all_fallback_picks(self) -> int:
        """Fallback picks since the start, of all policies."""
        return self._earlier_fallback_picks + self.fallback_picks

    def explain(self, trace: Trace | None) -> None:
        """Record explanations in `trace` from now on; None records none."""
        self.trace = trace
        for policy in (self.policy, self._fallback):
            self.call(set_trace, policy, trace)
        self._inner_pick: Pick = self.policy.pick if trace is None else self._pick_and_trace
        self._plain_pick: Pick = self._pick_in_level if len(self._loads) > 1 else self._inner_pick
        self.pick: Pick = self._plain_pick
        self._picks_to_measure = 0
        self._taken = 0.0  # seconds of CPU time of the last pick that was measured

    def use_levels(self, loads: Loads) -> None:
        """Give each of several priority levels its share of the picks: the policy then sees its endpoints alone."""
        had_several, self._loads = len(self._loads) > 1, loads
        if had_several or len(loads) > 1:
            self.explain(self.trace)

    def _pick_in_level(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        levels = {priority: available.of_priority(priority) for priority in self._loads}
        on_offer = [priority for priority, states in levels.items() if states]
        if not on_offer:
            return self._inner_pick(facts, available, now)
        level = self._turns.next(self._loads, on_offer)
        of_level = facts.avoiding(self._others.get(level, NONE_TRIED), level)
        state = self._inner_pick(of_level, levels[level], now)
        if self.trace is not None and self.trace.last is not None:
            self.trace.last.facts = facts
        return state

    def took_long(self, budget: float) -> bool:
        """Whether the last pick, which took more than `budget` seconds by the clock, took them of CPU time as well.
        That is measured from now on for a while; so of a first such pick it is not known, and this returns False."""
        is_known = self._picks_to_measure > 0
        self._picks_to_measure = MEASURED_PICKS
        self.pick = self._pick_and_measure
        return is_known and self._taken > budget

    def _pick_and_measure(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        began_at = self._cpu()
        try:
            return self._plain_pick(facts, available, now)
        finally:
            self._taken = self._cpu() - began_at
            self._picks_to_measure -= 1
            if not self._picks_to_measure:
                self.pick = self._plain_pick

    def _pick_and_trace(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        trace = self.trace
        assert trace is not None
        trace.begin(facts, len(available), now)
        state = self.policy.pick(facts, available, now)
        if state.is_selectable:
            trace.end(state, now)
        return state

    def notify_members(self, states: Sequence[EndpointState], now: float) -> None:
        """Call the policy's `members_changed`: endpoints or weights have changed, or the policy is new."""
        if len(self._loads) > 1:
            self._others = {
                level: frozenset(state.id for state in states if state.endpoint.priority != level)
                for level in self._loads
            }
        members_changed = getattr(self.policy, "members_changed", None)
        if members_changed is not None:
            self.call(members_changed, states, now)

    def doubts(self, state: EndpointState) -> bool:
        """Whether the policy doubts that the endpoint is as fast as usual; False where it has no such hook."""
        return self._doubts is not None and bool(self.call(self._doubts, state))

    def call(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        """Call a hook of the policy; an exception is recorded as the policy's fault and not raised."""
        try:
            return hook(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # also SystemExit: a policy must not end the process
            self.hook_fault = self._note(f"{raised(fault)} in {getattr(hook, '__name__', hook)}")
            return None

    def fallback_pick(
        self, facts: RequestFacts, available: Available, now: float, reason: str, fault: str
    ) -> EndpointState:
        """Return a fallback pick, and count and record the `fault` that made it necessary."""
        self.fallback_picks += 1
        is_raised = fault.startswith("raised")
        self.pick_fault = self._note(fault if is_raised else f"{fault}{place_of_pick(self.policy)}")
        trace = self.trace
        if trace is not None:
            trace.note(reason)
        state = self._fallback.pick(facts, available, now)
        if trace is not None:
            trace.end(state, now)
        return state

    def _note(self, fault: str) -> str:
        self.last_fault = described = f"policy {type(self.policy).__name__} {fault}"
        return described
