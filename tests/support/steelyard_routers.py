"""Routers with the steelyard policy whose endpoints answer when the test says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from policies import Endpoint, Outcome, OutcomeKind, RequestFacts, Router
from policies.contract import ManualClock
from policies.steelyard.policy import Steelyard
from tests.support.traces import last, traced

HOME = RequestFacts(region="near")


@dataclass
class Connections:
    """Idle connections, or none; opening one takes `connect_time`, its TCP handshake `round_trip` seconds."""

    has_idle: bool
    round_trip: float = 0.0
    connect_time: float = 0.09


def router(*members: Endpoint, **options: Any) -> tuple[Router, ManualClock]:
    clock = ManualClock()
    policy = Steelyard(Random(1), **options)
    return Router(members, policy, clock, Random(2)), clock


def endpoint(name: str, region: str = "near", weight: float = 1.0) -> Endpoint:
    return Endpoint(name, f"http://{name}", region, weight)


def outcome(sent_at: float, ended_at: float, kind: OutcomeKind = OutcomeKind.OK) -> Outcome:
    return Outcome(kind, 200, sent_at, ended_at if kind is OutcomeKind.OK else None, ended_at)


def answer(r: Router, clock: ManualClock, name: str, seconds: float) -> None:
    """Have a request to the endpoint answered after `seconds`, whatever the policy would pick."""
    others = frozenset(state.id for state in r.states if state.id != name)
    assignment = r.route(RequestFacts(region="near", tried=others))
    clock.time += seconds
    r.settle(assignment, outcome(clock.time - seconds, clock.time))


def measure(r: Router, clock: ManualClock, requests: int = 30, **seconds: float) -> None:
    """Let each answer so many requests, one at a time, every tenth of a second."""
    for _ in range(requests):
        begun = clock.time
        for name, latency in seconds.items():
            clock.time = begun
            answer(r, clock, name, latency)
        clock.time = begun + 0.1


def picks(r: Router, number: int = 40) -> Counter[str]:
    """Where requests go that end at once and leave no sample."""
    found: Counter[str] = Counter()
    for _ in range(number):
        assignment = r.route(HOME)
        found[assignment.state.id] += 1
        r.settle(assignment, outcome(assignment.routed_at, assignment.routed_at, OutcomeKind.ABANDONED))
    return found


def costs_by_name(r: Router) -> dict[str, float]:
    """The costs that the policy compares for a request, which ends at once, by endpoint."""
    trace = traced(r)
    assignment = r.route(HOME)
    r.settle(assignment, outcome(assignment.routed_at, assignment.routed_at, OutcomeKind.ABANDONED))
    r.explain(None)
    compared = last(trace).steps[0].as_dict()["candidates"]
    return {candidate["id"]: candidate["score"] for candidate in compared}
