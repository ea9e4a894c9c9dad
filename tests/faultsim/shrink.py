"""Make a failing plan smaller while it still fails in the same way.

Parts are removed in halves first, then one by one, until none can be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tests.faultsim.plan import Plan, PlannedRequest

Still = Callable[[Plan], bool]
WithOnly = Callable[[Plan, list[Any]], Plan]


def shrunk(plan: Plan, still_fails: Still) -> Plan:
    """The smallest failing plan found."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for parts_of, with_only in KINDS:
            parts = parts_of(plan)
            kept = _fewest(parts, partial(_fails, still_fails, with_only, plan))
            if len(kept) < len(parts):
                plan, is_smaller = with_only(plan, kept), True
    return plan


def _fails(still_fails: Still, with_only: WithOnly, plan: Plan, some: list[Any]) -> bool:
    return still_fails(with_only(plan, some))


def _fewest(items: Sequence[Any], fails_with: Callable[[list[Any]], bool]) -> list[Any]:
    """The items left when none can be removed."""
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


def _changed(plan: Plan, change: Callable[[PlannedRequest], list[PlannedRequest]]) -> Plan:
    """The plan with each request replaced; clients without any are left out."""
    clients = [
        replace(client, requests=[made for one in client.requests for made in change(one)])
        for client in plan.clients
    ]
    return replace(plan, clients=[client for client in clients if client.requests])


def _only_requests(plan: Plan, kept: Sequence[PlannedRequest]) -> Plan:
    wanted = {request.number for request in kept}
    return _changed(plan, lambda request: [request] if request.number in wanted else [])


def _damaged(plan: Plan) -> list[PlannedRequest]:
    return [one for one in plan.requests if one.client_damage or any(one.worker_damage + one.stream_damage)]


def _only_damage_of(plan: Plan, kept: Sequence[PlannedRequest]) -> Plan:
    damaged = {request.number for request in kept}
    sound: dict[str, Any] = {"client_damage": None, "worker_damage": (), "stream_damage": ()}
    return _changed(plan, lambda one: [one if one.number in damaged else replace(one, **sound)])


KINDS: tuple[tuple[Callable[[Plan], Sequence[Any]], WithOnly], ...] = (
    (lambda plan: plan.clients, lambda plan, kept: replace(plan, clients=kept)),
    (lambda plan: plan.faults, lambda plan, kept: replace(plan, faults=kept)),
    (lambda plan: plan.requests, _only_requests),
    (_damaged, _only_damage_of),
)
"""Parts of a plan, and the plan with only some of them."""
