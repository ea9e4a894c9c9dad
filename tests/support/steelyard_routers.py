"""Routers with the steelyard policy whose endpoints answer when the test says."""

from __future__ import annotations

from random import Random

from policies import Endpoint, Outcome, OutcomeKind, RequestFacts, Router
from policies.contract import ManualClock
from policies.steelyard.policy import Steelyard


def router(*members: Endpoint, **options: float) -> tuple[Router, ManualClock]:
    clock = ManualClock()
    policy = Steelyard(Random(1), **options)  # type: ignore[arg-type]
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
