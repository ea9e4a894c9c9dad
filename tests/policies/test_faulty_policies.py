"""Policies that misuse what the router gives them: the fault is theirs, and no request and no other policy has it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from operator import delitem, setitem
from random import Random
from typing import Any

import pytest

from policies import (
    Available,
    BrokenPolicy,
    EndpointState,
    Outcome,
    OutcomeKind,
    RequestFacts,
    Router,
    registry,
)
from policies.algorithms.random_choice import RandomChoice
from policies.contract import ContractBroken, ManualClock, endpoints, rules
from policies.insight.explanation import Trace
from policies.insight.shadow import Shadow, Shadowed
from policies.routing.trial_pick import require_pick
from tests.support.traces import last, traced

FACTS = RequestFacts(region="here")


def router(policy: Any, number: int = 3) -> Router:
    return Router(endpoints(*[1] * number), policy, ManualClock(), Random(1))


def serve(r: Router, times: int = 1) -> Counter[str]:
    """Route and settle so many requests, one after another; count the picks."""
    picked = Counter[str]()
    for number in range(times):
        assignment = r.route(RequestFacts(region="here", key=f"k{number}"))
        assert assignment.state is r.find(assignment.endpoint.id)
        r.settle(assignment, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
        picked[assignment.endpoint.id] += 1
    return picked


class Led:
    """Sends all to one until it is gone; the class keeps it, so all its instances share it."""

    leader: list[EndpointState] = []  # noqa: RUF012 - that is the mistake

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        if not self.leader or not self.leader[0].is_selectable:
            self.leader[:] = [available[0]]
        return self.leader[0]


@pytest.fixture(autouse=True)
def _leaderless() -> None:
    Led.leader.clear()


def test_endpoint_of_another_router_is_not_on_offer() -> None:
    """Though it is selectable there and has the same id: nobody would count the request or settle it."""
    one, other = router(Led()), router(Led())
    serve(one)
    serve(other, 3)
    assert [(r.routed, r.in_flight, r.fallback_picks) for r in (one, other)] == [(1, 0, 0), (3, 0, 3)]
    assert "not on offer" in str(other.last_fault)


def test_endpoints_of_a_trial_pick_are_not_selectable_after_it() -> None:
    require_pick(Led(), endpoints(1, 1))
    assert Led.leader
    r = router(Led())
    serve(r, 2)
    assert (r.fallback_picks, Led.leader) == (0, [r.states[0]])
