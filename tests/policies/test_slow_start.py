"""Slow start: shares over time, for policies with and without weights."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from policies import AdminState, Available, EndpointState, Policy, RequestFacts, Router, registry
from policies.algorithms.round_robin import MAX_PASSED_ENDPOINTS, RoundRobin
from policies.contract import ManualClock, endpoints
from policies.health.health import Health
from policies.health.slow_start import SlowStart

WINDOW = 20.0
FACTS = RequestFacts()


class Weightless:
    """Ignores weights: always picks the newest endpoint."""

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[-1]


def warming(*weights: float, policy: Policy | None = None) -> tuple[Router, ManualClock]:
    """A router whose last endpoint is new, and its clock."""
    clock = ManualClock()
    health = Health(Random(1), slow_start=SlowStart(WINDOW))
    router = Router(
        endpoints(*weights[:-1]), policy or RoundRobin(Random(1)), clock, Random(1), health=health
    )
    router.replace(endpoints(*weights))
    return router, clock


def pass_time(router: Router, clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.time += 1.0
        router.tick()


def shares(router: Router, count: int = 3000) -> list[float]:
    """The share of each endpoint in so many requests, none of which ends."""
    picked = Counter(router.policy.pick(FACTS, router.available, 0.0).id for _ in range(count))
    return [picked[state.id] / count for state in router.states]


@pytest.mark.parametrize(
    ("after", "share"), [(0, 0.1), (1, 0.1), (2, 0.1), (4, 0.2), (10, 0.5), (19, 0.95), (20, 1.0)]
)
def test_the_share_grows_with_time(after: int, share: float) -> None:
    """t/window of the weight, at least a tenth, at most all."""
    router, clock = warming(1, 1, 1, 2)
    pass_time(router, clock, after)
    new = router.states[-1]
    assert (new.share, new.weight) == pytest.approx((share, 2 * share))


def test_no_slow_start_when_the_balancer_starts() -> None:
    """All endpoints would start slowly, and a tenth of everything is everything."""
    health = Health(Random(1), slow_start=SlowStart(WINDOW))
    router = Router(endpoints(1, 1), RoundRobin(Random(1)), ManualClock(), Random(1), health=health)
    assert [state.share for state in router.states] == [1.0, 1.0]


def test_returned_endpoint_starts_slowly() -> None:
    """After failed checks, and after maintenance."""
    router, clock = warming(1, 1, 1)
    pass_time(router, clock, 20)
    router.set_healthy("here-0", False)
    router.set_admin_state("here-1", AdminState.MAINTENANCE)
    pass_time(router, clock, 5)
    router.set_healthy("here-0", True)
    router.set_admin_state("here-1", AdminState.READY)
    assert [state.share for state in router.states] == [0.1, 0.1, 1.0]
    pass_time(router, clock, 20)
    assert [state.share for state in router.states] == [1.0, 1.0, 1.0]


def test_unchanged_reload_leaves_slow_starts() -> None:
    """None begins and none ends."""
    router, clock = warming(1, 1, 1)
    pass_time(router, clock, 10)
    router.replace(endpoints(1, 1, 1))
    assert [state.share for state in router.states] == [1.0, 1.0, 0.5]


def test_slow_start_switched_off() -> None:
    """A new endpoint has its share at once, and a slow start in progress ends at the next tick."""
    router, clock = warming(1, 1, 1)
    router.apply_health(Health(Random(1)))
    router.replace(endpoints(1, 1, 1, 1))
    pass_time(router, clock, 1)
    assert [state.share for state in router.states] == [1.0] * 4


@pytest.mark.parametrize("name", ["random", "round-robin", "region-round-robin", "latency-weighted"])
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_weighted_policies_apply_slow_start(name: str, weight: float) -> None:
    """Half-way, a new endpoint gets half of its weight's share, and the others the rest."""
    router, clock = warming(1, 1, 1, weight, policy=registry.make(name, {}, Random(3)))
    pass_time(router, clock, 10)
    found = shares(router, 6000)
    assert found[-1] == pytest.approx(weight / 2 / (3 + weight / 2), abs=0.03)
    assert found[0] == pytest.approx(found[1], abs=0.03)


def test_policy_without_weights_is_limited_in_flight() -> None:
    """To its share of twice what the others have in flight, and at least one; the limit grows and then ends."""
    router, clock = warming(1, 1, 1, policy=Weightless())
    router.states[0].in_flight = router.states[1].in_flight = 20
    held = []
    for _ in range(20):
        held.append(router.states[-1].limit)
        pass_time(router, clock, 1)
    assert held[0] == 1  # none had requests in flight when it was added
    assert held[2:] == [max(4, 2 * n) for n in range(2, 20)]
    assert router.states[-1].limit == float("inf")


def test_router_keeps_the_slow_start_limit() -> None:
    """The endpoint is unavailable at the limit."""
    router, clock = warming(1, 1, 1, policy=Weightless())
    first = [router.route(FACTS).endpoint.id for _ in range(3)]
    assert first == ["here-2", "here-1", "here-1"]
    pass_time(router, clock, 20)
    assert router.route(FACTS).endpoint.id == "here-2"


def test_smaller_of_slow_start_limit_and_own_limit_applies() -> None:
    router, clock = warming(1, 1)
    members = [state.endpoint for state in router.states]
    limited = type(members[1])("here-1", members[1].address, members[1].region, 1.0, 3)
    router.replace([members[0], limited])
    router.states[0].in_flight = 100
    pass_time(router, clock, 10)
    assert router.states[1].limit == 3
    pass_time(router, clock, 10)
    assert router.states[1].limit == 3


def test_no_slow_start_limit_when_all_return_together() -> None:
    """There is no warm endpoint to take the requests."""
    router, clock = warming(1, 1)
    pass_time(router, clock, 20)
    for state in router.states:
        router.set_admin_state(state.id, AdminState.MAINTENANCE)
    for state in router.states:
        router.set_admin_state(state.id, AdminState.READY)
    pass_time(router, clock, 1)
    assert [state.limit for state in router.states] == [float("inf")] * 2
    assert shares(router) == pytest.approx([0.5, 0.5], abs=0.05)


def test_round_robin_passes_over_a_bounded_number() -> None:
    """With a thousand new endpoints a pick stays bounded, and all get requests."""
    router, _ = warming(*[1] * 3, policy=RoundRobin(Random(1)))
    router.replace(endpoints(*[1] * 1000))
    for state in router.states:
        state.apply_slow_start(0.1, float("inf"))
    policy = router.policy
    picked = Counter(policy.pick(FACTS, router.available, 0.0).order for _ in range(10_000))
    assert len(picked) == 1000
    assert max(picked.values()) <= 20
    assert MAX_PASSED_ENDPOINTS < 1000
