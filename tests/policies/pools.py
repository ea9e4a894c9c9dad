"""A router whose endpoints end requests as a test says, for tests of health and explanations."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from policies import Endpoint, EndpointState, Outcome, OutcomeKind, RequestFacts, Router
from policies.contract import ManualClock
from policies.endpoint.available import Available
from policies.endpoint.ejection import EjectionRules
from policies.health.health import Health
from policies.health.panic import Panic
from policies.policy import Policy


class Named:
    """Picks the endpoint of that name, available or not."""

    name = ""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return next(state for state in available if state.id == self.name)


class Pool:
    """A router with regions of the given sizes, endpoints "a0", "a1", "b0", …; tests decide how requests end."""

    def __init__(
        self,
        *sizes: int,
        rules: EjectionRules | None = None,
        panic: float = 0.5,
        policy: Policy | None = None,
        weight: float = 1.0,
    ) -> None:
        self.clock = ManualClock()
        self.named = Named()
        members = [
            Endpoint(f"{region}{i}", "http://x", region, weight)
            for region, size in zip("abcdef", sizes, strict=False)
            for i in range(size)
        ]
        health = Health(Random(1), ejection=rules or EjectionRules(), panic=Panic(panic))
        self.router = Router(members, policy or self.named, self.clock, Random(1), health=health)

    def __getitem__(self, name: str) -> EndpointState:
        return self.router.find(name)

    def ends(self, name: str, *kinds: OutcomeKind, status: int | None = None) -> None:
        """End one request per outcome at the endpoint; outcomes are skipped while it is unavailable."""
        for kind in kinds:
            if self[name].available:
                self.named.name = name
                assignment = self.router.route(RequestFacts())
                now = self.clock.time
                self.router.settle(assignment, Outcome(kind, status, now, now, now))

    def all_end(self, kind: OutcomeKind, times: int = 1) -> None:
        for state in self.router.states:
            self.ends(state.id, *[kind] * times)

    def pass_time(self, seconds: float, *each_second: tuple[str, OutcomeKind]) -> None:
        """Advance by whole seconds with a tick after each; before each tick a request ends at the given endpoints."""
        for _ in range(round(seconds)):
            for name, kind in each_second:
                self.ends(name, kind)
            self.clock.time += 1.0
            self.router.tick()

    @property
    def unavailable(self) -> set[str]:
        """Ids of the endpoints that take no requests."""
        return {state.id for state in self.router.states if not state.available}

    @property
    def available(self) -> set[str]:
        """Ids of the endpoints that a policy may pick."""
        return {state.id for state in self.router.available}


def mark_unhealthy(pool: Pool, names: Iterable[str], *, is_reachable: bool = True) -> None:
    for name in names:
        pool.router.set_healthy(name, False, is_reachable=is_reachable)
