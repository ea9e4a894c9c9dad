"""The router: each request is counted in once and out once, and no policy's fault loses one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from policies import (
    AlreadySettled,
    Assignment,
    Available,
    DuplicateEndpoint,
    Endpoint,
    EndpointState,
    NoEndpointAvailable,
    Outcome,
    OutcomeKind,
    Policy,
    ReportedLoad,
    RequestFacts,
    Router,
    UnknownEndpoint,
)
from policies.algorithms.region_aware import RegionAware
from policies.algorithms.regions import RegionRoundRobin, SingleRegion
from policies.algorithms.round_robin import RoundRobin
from policies.contract import ManualClock, endpoints
from policies.routing.active_policy import MEASURED_PICKS

FACTS = RequestFacts()


def outcome(kind: OutcomeKind = OutcomeKind.OK, sent: float = 0.0, ended: float = 0.1) -> Outcome:
    return Outcome(kind, 200, sent, ended, ended)


class First:
    """Picks the first available endpoint, or misbehaves as set."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock
        self.raises = False
        self.takes = 0.0
        self.picks: object = None
        self.calls: list[tuple[object, ...]] = []

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        if self.raises:
            raise ZeroDivisionError("oops")
        if self.clock is not None:
            self.clock.time += self.takes
        return self.picks or available[0]  # type: ignore[return-value]


class AllHooks(First):
    """Records the calls of all its hooks."""

    def observe(self, state: EndpointState, result: Outcome, now: float) -> None:
        self.calls.append(("observe", state.id, state.in_flight, result.kind, now))

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        self.calls.append(("members_changed", len(states)))

    def tick(self, now: float) -> None:
        self.calls.append(("tick", now))


def router(policy: Policy | None = None, members: list[Endpoint] | None = None) -> Router:
    """Three endpoints by default, at time 0."""
    wanted = endpoints(1, 1, 1) if members is None else members
    return Router(wanted, policy or First(), ManualClock(), Random(1))


def test_route_counts_in_and_settle_counts_out() -> None:
    """An assignment counts from route to settle, and holds the number of requests ahead of it."""
    r = router()
    one, two = r.route(FACTS), r.route(FACTS)
    assert (one.endpoint.id, one.in_flight_at_send, two.in_flight_at_send) == ("here-0", 0, 1)
    assert r.find("here-0").in_flight == 2
    r.settle(one, outcome())
    assert r.find("here-0").in_flight == 1
    assert r.routed == 2


def test_settling_twice_is_an_error() -> None:
    """The second settle raises and changes no count."""
    r = router()
    assignment = r.route(FACTS)
    r.settle(assignment, outcome())
    with pytest.raises(AlreadySettled, match="here-0"):
        r.settle(assignment, outcome())
    assert r.find("here-0").in_flight == 0
    assert sum(r.find("here-0").outcomes.values()) == 1


def test_outcomes_are_counted_by_kind() -> None:
    """Only successes enter the histogram."""
    r = router()
    for kind in OutcomeKind:
        r.settle(r.route(FACTS), outcome(kind))
    state = r.find("here-0")
    assert set(state.outcomes.values()) == {1}
    assert state.histogram.count == 1


@pytest.mark.parametrize("reason", ["unhealthy", "disabled", "full"])
def test_unavailable_endpoint_is_not_picked_until_it_is_available_again(reason: str) -> None:
    """Unhealthy, disabled or full."""
    first = Endpoint("here-0", "http://x", "here", max_in_flight=1)
    r = router(members=[first, *endpoints(1, 1)[1:]])
    held: Assignment | None = None
    if reason == "unhealthy":
        r.set_healthy("here-0", False)
    elif reason == "disabled":
        r.set_enabled("here-0", False)
    else:
        held = r.route(FACTS)
    assert r.route(FACTS).endpoint.id == "here-1"
    assert not r.find("here-0").available
    r.set_healthy("here-0", True)
    r.set_enabled("here-0", True)
    if held is not None:
        r.settle(held, outcome())
    assert r.route(FACTS).endpoint.id == "here-0"


def test_error_distinguishes_a_full_pool_from_an_unhealthy_one() -> None:
    r = router(members=[Endpoint("a", "http://x", "here", max_in_flight=1)])
    held = r.route(FACTS)
    with pytest.raises(NoEndpointAvailable, match="1 of these full") as full:
        r.route(FACTS)
    assert str(full.value).endswith("1 of these eligible, 1 of these full")
    r.settle(held, outcome())
    r.set_healthy("a", False)
    with pytest.raises(NoEndpointAvailable) as dead:
        r.route(FACTS)
    assert str(dead.value).endswith("0 of these eligible, 0 of these full")
    assert dead.value.status == 503


def test_on_available_is_called_once_when_an_endpoint_becomes_available() -> None:
    """So that waiting requests can be routed."""
    r = router(members=[Endpoint(i, "http://x", "here", max_in_flight=1) for i in "ab"])
    woken: list[int] = []
    r.on_available = lambda: woken.append(1)
    held = [r.route(FACTS), r.route(FACTS)]
    for assignment in held:
        r.settle(assignment, outcome())
    assert woken == [1]


def test_on_available_may_route_at_once() -> None:
    """Inside settle the request that ended is already counted out; new endpoints also count."""
    r = router(members=[Endpoint("a", "http://x", "here", max_in_flight=1)])
    held, woken = r.route(FACTS), []
    r.on_available = lambda: woken.append((r.route(FACTS).endpoint.id, r.find("a").latency.floor))
    r.settle(held, outcome())
    assert woken == [("a", 0.1)]
    r.replace([Endpoint("a", "http://x", "here", max_in_flight=2)])
    assert len(woken) == 2


def test_tried_endpoints_are_avoided_while_there_are_others() -> None:
    r = router()
    assert r.route(RequestFacts(tried=frozenset({"here-0"}))).endpoint.id == "here-1"
    everyone = frozenset(state.id for state in r.states)
    assert r.route(RequestFacts(tried=everyone)).endpoint.id == "here-0"


def test_policy_that_raises_is_replaced_by_the_fallback() -> None:
    """For that request; the fault is counted and described."""
    policy = First()
    r = router(policy)
    policy.raises = True
    assert r.route(FACTS).endpoint.id.startswith("here-")
    assert r.fallback_picks == 1
    assert "First" in str(r.last_fault)
    assert "ZeroDivisionError('oops')" in str(r.last_fault)


@pytest.mark.parametrize("is_busy", [False, True], ids=["slow policy", "busy machine"])
def test_policy_that_exceeds_its_time_budget_is_replaced_by_the_fallback(is_busy: bool) -> None:
    """From the second time on, and not where the machine did something else meanwhile."""
    clock = ManualClock()
    policy = First(clock)
    measured: list[float] = []

    def cpu() -> float:
        measured.append(clock.now())
        return 0.0 if is_busy else clock.now()

    r = Router(endpoints(1, 1), policy, clock, Random(1), time_budget=0.002, cpu=cpu)
    for takes, fallbacks in ((0.001, 0), (0.003, 0), (0.003, 1), (0.001, 1), (0.003, 2)):
        policy.takes = takes
        r.route(FACTS)
        assert r.fallback_picks == (0 if is_busy else fallbacks)
    pick = First.pick.__code__
    place = f"{pick.co_filename}:{pick.co_firstlineno}"
    assert r.last_fault == (None if is_busy else f"policy First took over 2 ms of CPU time (pick at {place})")
    policy.takes = 0.0
    for _ in range(2 * MEASURED_PICKS):
        r.route(FACTS)
    assert len(measured) == 2 * (MEASURED_PICKS + 3)


def test_pick_that_is_not_available_is_replaced_by_the_fallback() -> None:
    """An unknown endpoint, an unavailable one, one already tried, or no endpoint at all."""
    policy = First()
    r = router(policy)
    r.set_healthy("here-2", False)
    for wrong in (EndpointState(endpoints(1)[0]), r.find("here-2"), "here-1"):
        policy.picks = wrong
        assert r.route(FACTS).state in r.available
    policy.picks = r.find("here-0")
    assert r.route(RequestFacts(tried=frozenset({"here-0"}))).endpoint.id == "here-1"
    assert r.fallback_picks == 4


def test_faults_are_counted_anew_for_each_policy() -> None:
    """Also under the same policy installed again; the total only grows."""
    policy = First()
    policy.raises = True
    r = router(policy)
    r.route(FACTS)
    assert (r.active.installations, r.fallback_picks, r.active.all_fallback_picks) == (1, 1, 1)
    policies: list[Policy] = [RoundRobin(Random(1)), policy]
    for number, each in enumerate(policies, 2):
        r.set_policy(each)
        assert (r.active.installations, r.fallback_picks, r.last_fault) == (number, 0, None)
        assert r.active.all_fallback_picks == 1
    r.route(FACTS)
    assert (r.fallback_picks, r.active.all_fallback_picks) == (1, 2)
    assert "First" in str(r.last_fault)


def test_hooks_are_called_in_order() -> None:
    """members_changed at once and on replace, observe after counting out, tick on tick."""
    policy = AllHooks()
    r = router(policy)
    r.settle(r.route(FACTS), outcome(ended=0.5))
    r.tick()
    r.replace(endpoints(1))
    assert policy.calls == [
        ("members_changed", 3),
        ("observe", "here-0", 0, OutcomeKind.OK, 0.5),
        ("tick", 0.0),
        ("members_changed", 1),
    ]


def test_hook_that_raises_loses_no_request() -> None:
    """The request is settled; the fault is recorded."""

    class Broken(First):
        def observe(self, state: EndpointState, result: Outcome, now: float) -> None:
            raise KeyError("x")

    r = router(Broken())
    r.settle(r.route(FACTS), outcome())
    assert r.find("here-0").in_flight == 0
    assert "KeyError('x')" in str(r.last_fault)
    assert "observe" in str(r.last_fault)


def test_replace_keeps_the_state_of_remaining_endpoints() -> None:
    """New ones start empty, and the order is that of the new configuration."""
    r = router()
    held = r.route(FACTS)
    new = Endpoint("new", "http://new", "here")
    r.replace([new, *endpoints(2, 1)])
    assert [state.id for state in r.states] == ["new", "here-0", "here-1"]
    assert r.find("here-0").in_flight == 1
    assert r.find("here-0").weight == 2
    assert r.route(FACTS).endpoint.id == "new"
    r.settle(held, outcome())
    assert r.find("here-0").in_flight == 0


def test_request_at_a_removed_endpoint_can_be_settled() -> None:
    """Even if the endpoint was full; it gets no more requests."""
    r = router(members=[Endpoint("old", "http://x", "here", max_in_flight=1)])
    held = r.route(FACTS)
    r.replace(endpoints(1))
    r.settle(held, outcome())
    assert held.state.in_flight == 0
    assert not held.state.available
    assert [state.id for state in r.available] == ["here-0"]
    with pytest.raises(UnknownEndpoint, match=r"'old'.*here-0"):
        r.find("old")


def test_new_address_clears_latency() -> None:
    r = router()
    r.settle(r.route(FACTS), outcome())
    assert r.find("here-0").is_measured(0.1)
    r.replace([Endpoint("here-0", "http://elsewhere", "here")])
    assert not r.find("here-0").is_measured(0.1)


def test_duplicate_id_changes_nothing() -> None:
    r = router()
    with pytest.raises(DuplicateEndpoint, match="'here-0'"):
        r.replace(endpoints(1) + endpoints(1))
    assert len(r.states) == 3


def test_total_limit_can_be_changed() -> None:
    """A lower one takes effect as requests end. A higher one calls `on_available` once there is room."""
    clock, rng = ManualClock(), Random(1)
    router = Router(endpoints(1, 1), First(), clock, rng, in_flight_limit=2)
    woken: list[bool] = []
    router.on_available = lambda: woken.append(router.has_room)
    held = [router.route(FACTS), router.route(FACTS)]
    router.apply_in_flight_limit(1)
    router.settle(held.pop(), outcome())
    assert (router.has_room, woken) == (False, [])
    router.apply_in_flight_limit(2)
    assert (router.has_room, woken) == (True, [True])
    router.apply_in_flight_limit(None)
    assert woken == [True]
    router.settle(held.pop(), outcome())


class ProbingPolicy(First):
    """Asks for probes of the last two endpoints after each pick."""

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        self.states = states

    def probes(self, now: float) -> list[EndpointState]:
        self.calls.append(("probes", self.states[0].in_flight, now))
        return self.states[1:]

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        self.calls.append(("probed", state.id, load.in_flight, latency, now))


def test_probes_are_sent_after_each_pick_and_reported() -> None:
    """The request is already counted in; a probe of a removed endpoint is dropped."""
    policy, probed = ProbingPolicy(), list[str]()
    r = router(policy)
    r.on_probe = lambda state: probed.append(state.id)
    r.route(FACTS)
    assert probed == ["here-1", "here-2"]
    r.probed(r.states[1], ReportedLoad(in_flight=3), 0.02, 0.5)
    gone = r.states[2]
    r.replace(endpoints(1, 1))
    r.probed(gone, ReportedLoad(in_flight=3), 0.02, 0.5)
    assert policy.calls == [("probes", 1, 0.0), ("probed", "here-1", 3, 0.02, 0.5)]


def test_probe_hooks_are_called_only_with_a_prober() -> None:
    """A policy without the hook gets no probes, and a late result is no fault."""
    policy = ProbingPolicy()
    r = router(policy)
    r.route(FACTS)
    assert policy.calls == []
    r.on_probe = lambda state: policy.calls.append(("probed",))
    r.set_policy(First())
    r.route(FACTS)
    r.probed(r.states[0], ReportedLoad(), 0.02, 0.5)
    assert (policy.calls, r.last_fault) == ([], None)


def test_fault_in_probing_loses_no_request() -> None:
    """It is recorded, and the request is routed."""
    policy = ProbingPolicy()
    r = router(policy)

    def broken(state: EndpointState) -> None:
        raise OSError("no socket left")

    r.on_probe = broken
    assert r.route(FACTS).endpoint.id == "here-0"
    assert r.fallback_picks == 0
    assert "OSError('no socket left')" in str(r.last_fault)


@pytest.mark.parametrize("wrap", [SingleRegion, RegionRoundRobin, RegionAware])
def test_inner_policy_may_probe(wrap: Any) -> None:
    """Wrapping policies pass probes on; without such an inner policy they have no probe hooks."""
    children: list[ProbingPolicy] = []

    def inner(rng: Random) -> Policy:
        children.append(ProbingPolicy())
        return children[-1]

    options = {"region": "here"} if wrap is SingleRegion else {}
    r, probed = router(wrap(Random(1), inner=inner, **options)), list[str]()
    r.on_probe = lambda state: probed.append(state.id)
    r.route(FACTS)
    r.probed(r.states[1], ReportedLoad(in_flight=3), 0.02, 0.5)
    assert probed == ["here-1", "here-2"]
    assert children[-1].calls == [("probes", 1, 0.0), ("probed", "here-1", 3, 0.02, 0.5)]
    assert not hasattr(wrap(Random(1), **options), "probes")


def test_request_awaits_an_answer_only_once_it_is_sent() -> None:
    clock = ManualClock()
    router = Router(endpoints(1), First(), clock, Random(1))
    (state,) = router.states
    first, second = router.route(FACTS), router.route(FACTS)
    for assignment in first, second:
        assignment.connecting()
    assert (state.in_flight, state.awaiting) == (2, 0)
    clock.time += 1.0
    first.connected(clock.time)
    clock.time += 0.5
    assert (state.awaiting, state.waited(clock.time)) == (1, 0.5)
    for assignment in first, second:
        router.settle(assignment, outcome(OutcomeKind.ABANDONED, ended=clock.time))
    assert (state.in_flight, state.awaiting, state.waited(clock.time)) == (0, 0, 0.5)


class Doubting(First):
    """Doubts the endpoints of `bad`."""

    bad = frozenset[str]()

    def doubts(self, state: EndpointState) -> bool:
        return state.id in self.bad


def test_each_doubt_is_reported_once() -> None:
    """And again after it had ended; the second endpoint's beside the first one's. Without the hook there is none."""
    policy = Doubting()
    r = router(policy, [Endpoint(name, f"http://{name}", "here") for name in "abc"])
    found = []
    for bad in ("", "a", "a", "ab", "b", "ab", "", "c"):
        policy.bad = frozenset(bad)
        found.append("".join(state.id for state in r.newly_doubted()))
    assert found == ["", "a", "", "b", "", "a", "", "c"]
    assert router().newly_doubted() == []
