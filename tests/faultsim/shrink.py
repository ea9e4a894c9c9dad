"""Make a failing plan smaller while it still fails in the same way.

Parts are removed in halves first, then one by one, until none can be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.faultsim.plan import Plan, PlannedClient, PlannedRequest

T = TypeVar("T")
Still = Callable[[Plan], bool]


def shrunk(plan: Plan, still_fails: Still) -> Plan:
    """The smallest failing plan found."""
    smaller: Plan | None = plan
    while smaller is not None:
        plan, smaller = smaller, None
        for step in (_fewer_clients, _fewer_faults, _fewer_requests, _less_damage):
            found = step(smaller or plan, still_fails)
            smaller = found or smaller
    return plan


def _fewest(items: Sequence[T], fails_with: Callable[[list[T]], bool]) -> list[T]:
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


def _fewer_clients(plan: Plan, still_fails: Still) -> Plan | None:
    kept = _fewest(plan.clients, lambda clients: still_fails(replace(plan, clients=clients)))
    return replace(plan, clients=kept) if len(kept) < len(plan.clients) else None


def _fewer_faults(plan: Plan, still_fails: Still) -> Plan | None:
    kept = _fewest(plan.faults, lambda faults: still_fails(replace(plan, faults=faults)))
    return replace(plan, faults=kept) if len(kept) < len(plan.faults) else None


def _fewer_requests(plan: Plan, still_fails: Still) -> Plan | None:
    def only(requests: list[PlannedRequest]) -> Plan:
        wanted = {request.number for request in requests}
        clients: list[PlannedClient] = [
            replace(client, requests=[request for request in client.requests if request.number in wanted])
            for client in plan.clients
        ]
        return replace(plan, clients=[client for client in clients if client.requests])

    kept = _fewest(plan.requests, lambda requests: still_fails(only(requests)))
    return only(kept) if len(kept) < len(plan.requests) else None


def _less_damage(plan: Plan, still_fails: Still) -> Plan | None:
    """Remove the damage of requests."""
    before = plan
    for request in [
        request
        for request in plan.requests
        if request.client_damage or any(request.worker_damage + request.stream_damage)
    ]:
        sound = replace(request, client_damage=None, worker_damage=(), stream_damage=())
        tried = replace(
            plan,
            clients=[
                replace(
                    client,
                    requests=[sound if one.number == request.number else one for one in client.requests],
                )
                for client in plan.clients
            ],
        )
        if still_fails(tried):
            plan = tried
    return plan if plan is not before else None
