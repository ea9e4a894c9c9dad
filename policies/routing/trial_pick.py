"""Trial pick: a policy must pick without a fault before it is put in force."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from math import inf
from random import Random

from policies.errors import BrokenPolicy, Overloaded
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.insight.explanation import Trace
from policies.policy import Policy
from policies.routing.router import Router


class StepClock:
    """A clock that is a second later at each reading."""

    def __init__(self) -> None:
        self.now = map(float, count()).__next__


def require_pick(policy: Policy, endpoints: Iterable[Endpoint], region: str | None = None) -> None:
    """Route and settle one request, another with explanations, and call `tick`, in a router of its own. Raises
    `BrokenPolicy` for a fault.

    `policy` must not be used afterwards: what it learns here is not true of its endpoints. Without endpoints it picks
    from two that are made up, as discovery may find any later.
    """
    members = list(endpoints) or [
        Endpoint(f"trial-{number}", f"http://trial-{number}", region or "trial") for number in range(2)
    ]
    rng = Random(0)
    router = Router(members, policy, StepClock(), rng, time_budget=inf)
    for trace in (None, Trace()):
        router.explain(trace)
        try:
            assignment = router.route(RequestFacts(region=region, key="trial"))
        except Overloaded:  # the policy may reject a request
            continue
        at = assignment.routed_at
        router.settle(assignment, Outcome(OutcomeKind.OK, 200, at, at + 0.1, at + 0.2))
    router.tick()
    for state in router.states:
        state.is_selectable = False  # the class may have kept it for its other instances
    if router.last_fault is not None:
        fault = router.last_fault.removeprefix("policy ")
        raise BrokenPolicy(f"{fault}, in a trial pick before it is put in force")
