"""A plan made smaller while it still shows the same.

Rule of this file: whatever is taken out is kept out if the rest still fails in the same way; it is tried in halves
first, then one by one, until nothing can go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.faultsim.plan import Ask, Caller, Plan

T = TypeVar("T")
Still = Callable[[Plan], bool]


def shrunk(plan: Plan, still_fails: Still) -> Plan:
    """The smallest plan that this finds."""
    smaller: Plan | None = plan
    while smaller is not None:
        plan, smaller = smaller, None
        for step in (_fewer_callers, _fewer_faults, _fewer_asks, _less_damage):
            found = step(smaller or plan, still_fails)
            smaller = found or smaller
    return plan


def _fewest(items: Sequence[T], fails_with: Callable[[list[T]], bool]) -> list[T]:
    """What is left when nothing more can go."""
    kept = list(items)
    size = len(kept)
    while size:
        at = 0
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if fails_with(rest):
                kept = rest
            else:
                at += size
        size //= 2
    return kept


def _fewer_callers(plan: Plan, still_fails: Still) -> Plan | None:
    kept = _fewest(plan.callers, lambda callers: still_fails(replace(plan, callers=callers)))
    return replace(plan, callers=kept) if len(kept) < len(plan.callers) else None


def _fewer_faults(plan: Plan, still_fails: Still) -> Plan | None:
    kept = _fewest(plan.faults, lambda faults: still_fails(replace(plan, faults=faults)))
    return replace(plan, faults=kept) if len(kept) < len(plan.faults) else None


def _fewer_asks(plan: Plan, still_fails: Still) -> Plan | None:
    def only(asks: list[Ask]) -> Plan:
        wanted = {ask.number for ask in asks}
        callers: list[Caller] = [
            replace(caller, asks=[ask for ask in caller.asks if ask.number in wanted])
            for caller in plan.callers
        ]
        return replace(plan, callers=[caller for caller in callers if caller.asks])

    kept = _fewest(plan.asks, lambda asks: still_fails(only(asks)))
    return only(kept) if len(kept) < len(plan.asks) else None


def _less_damage(plan: Plan, still_fails: Still) -> Plan | None:
    """Requests that are asked and answered as they should be."""
    before = plan
    for ask in [ask for ask in plan.asks if ask.client_damage or any(ask.worker_damage)]:
        sound = replace(ask, client_damage=None, worker_damage=())
        tried = replace(
            plan,
            callers=[
                replace(caller, asks=[sound if one.number == ask.number else one for one in caller.asks])
                for caller in plan.callers
            ],
        )
        if still_fails(tried):
            plan = tried
    return plan if plan is not before else None
