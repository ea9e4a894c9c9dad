"""Policy that runs two others side by side, as an experiment does: by request, or by interval of time."""

from __future__ import annotations

from random import Random

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, RequestFacts
from policies.policy import Policy, PolicyMaker


class Split:
    """Control or treatment for each request, drawn with probability `share` of treatment.

    With `every` > 0 a switchback instead: one of both for `every` seconds, each once in two intervals, in random order.
    Both learn from all responses, as they would behind one balancer. `arms` has an item per pick, true for treatment.
    """

    def __init__(
        self,
        rng: Random,
        *,
        control: PolicyMaker,
        treatment: PolicyMaker,
        share: float = 0.5,
        every: float = 0.0,
    ) -> None:
        self._policies: tuple[Policy, Policy] = (control(rng), treatment(rng))
        self._rng = rng
        self._share = share
        self._every = every
        self._firsts: list[bool] = []
        self.arms: list[bool] = []

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Let one of both pick. O(1) beside it."""
        is_treated = self._arm(now)
        self.arms.append(is_treated)
        return self._policies[is_treated].pick(facts, available, now)

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Report the response to both."""
        self._tell("observe", state, outcome, now)

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Report the endpoints to both."""
        self._tell("members_changed", states, now)

    def tick(self, now: float) -> None:
        """Call the `tick` hook of both."""
        self._tell("tick", now)

    def _arm(self, now: float) -> bool:
        if not self._every:
            return self._rng.random() < self._share
        interval = int(now / self._every)
        while len(self._firsts) <= interval // 2:
            self._firsts.append(self._rng.random() < 0.5)
        return self._firsts[interval // 2] != bool(interval % 2)

    def _tell(self, hook: str, *facts: object) -> None:
        for policy in self._policies:
            if hasattr(policy, hook):
                getattr(policy, hook)(*facts)
