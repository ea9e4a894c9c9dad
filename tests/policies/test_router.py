"""The router: a request is counted in once and out once, and no policy can cost one."""

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
    MonotonicClock,
    NoEndpointAvailable,
    Outcome,
    OutcomeKind,
    Policy,
    ReportedLoad,
    RequestFacts,
    Router,
    UnknownEndpoint,
)
from policies.contract import ManualClock, endpoints
from policies.region_aware import RegionAware
from policies.regions import RegionRoundRobin, SingleRegion
from policies.round_robin import RoundRobin

FACTS = RequestFacts()


def outcome(kind: OutcomeKind = OutcomeKind.OK, sent: float = 0.0, ended: float = 0.1) -> Outcome:
    """An attempt that ended so."""
    return Outcome(kind, 200, sent, ended, ended)


class First:
    """Picks the first; told to, it misbehaves instead."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock
        self.raises = False
        self.takes = 0.0
        self.picks: object = None
        self.heard: list[tuple[object, ...]] = []

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        if self.raises:
            raise ZeroDivisionError("oops")
        if self.clock is not None:
            self.clock.time += self.takes
        return self.picks or available[0]  # type: ignore[return-value]


class Listening(First):
    """Has all the hooks."""

    def observe(self, state: EndpointState, result: Outcome, now: float) -> None:
        self.heard.append(("observe", state.id, state.in_flight, result.kind, now))

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        self.heard.append(("members_changed", len(states)))

    def tick(self, now: float) -> None:
        self.heard.append(("tick", now))


def router(policy: Policy | None = None, members: list[Endpoint] | None = None) -> Router:
    """Three endpoints unless told otherwise, at time 0."""
    wanted = endpoints(1, 1, 1) if members is None else members
    return Router(wanted, policy or First(), ManualClock(), Random(1))


def test_route_counts_in_and_settle_counts_out() -> None:
    """An assignment holds one place from route to settle, and knows how many were ahead of it."""
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
    """Each kind has its count; only successes enter the histogram."""
    r = router()
    for kind in OutcomeKind:
        r.settle(r.route(FACTS), outcome(kind))
    state = r.find("here-0")
    assert set(state.outcomes.values()) == {1}
    assert state.histogram.count == 1


@pytest.mark.parametrize("reason", ["unhealthy", "disabled", "full"])
def test_what_is_not_available_is_not_offered(reason: str) -> None:
    """Unhealthy, disabled or full: the list is ready without it, and ready again when that has passed."""
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


def test_a_flip_keeps_the_order_and_the_regions() -> None:
    """After any flips the list is as if it had been made anew."""
    members = [Endpoint(f"e{i}", "http://x", f"r{i % 3}") for i in range(12)]
    r, rng = router(members=members), Random(2)
    for _ in range(300):
        r.set_healthy(f"e{rng.randrange(12)}", rng.random() < 0.4)
        fresh = Available(state for state in r.states if state.available)
        assert list(r.available) == list(fresh)
        assert {k: list(v) for k, v in r.available.by_region.items()} == {
            k: list(v) for k, v in fresh.by_region.items()
        }


def test_nobody_available_says_why() -> None:
    """The error tells a full pool, where waiting helps, from a dead one, where it does not."""
    r = router(members=[Endpoint("a", "http://x", "here", max_in_flight=1)])
    held = r.route(FACTS)
    with pytest.raises(
        NoEndpointAvailable, match="1 known, 1 ready, 1 of these eligible, 1 of these full"
    ) as full:
        r.route(FACTS)
    assert full.value.is_saturated
    r.settle(held, outcome())
    r.set_healthy("a", False)
    with pytest.raises(NoEndpointAvailable) as dead:
        r.route(FACTS)
    assert not dead.value.is_saturated
    assert dead.value.status == 503


def test_on_available_is_called_when_the_drought_ends() -> None:
    """Once per drought, so that whoever waits can be woken."""
    r = router(members=[Endpoint(i, "http://x", "here", max_in_flight=1) for i in "ab"])
    woken: list[int] = []
    r.on_available = lambda: woken.append(1)
    held = [r.route(FACTS), r.route(FACTS)]
    for assignment in held:
        r.settle(assignment, outcome())
    assert woken == [1]


def test_whoever_is_woken_may_route_at_once() -> None:
    """Inside settle the request that ended is already counted; new endpoints end a drought, too."""
    r = router(members=[Endpoint("a", "http://x", "here", max_in_flight=1)])
    held, woken = r.route(FACTS), []
    r.on_available = lambda: woken.append((r.route(FACTS).endpoint.id, r.find("a").latency.floor))
    r.settle(held, outcome())
    assert woken == [("a", 0.1)]
    r.replace([Endpoint("a", "http://x", "here", max_in_flight=2)])
    assert len(woken) == 2


def test_tried_endpoints_are_avoided_while_there_are_others() -> None:
    """A retry goes elsewhere if it can, and back if it must."""
    r = router()
    assert r.route(RequestFacts(tried=frozenset({"here-0"}))).endpoint.id == "here-1"
    everyone = frozenset(state.id for state in r.states)
    assert r.route(RequestFacts(tried=everyone)).endpoint.id == "here-0"


def test_a_policy_that_raises_is_demoted_for_that_request() -> None:
    """The request is routed all the same, the fault is counted and put in words."""
    policy = First()
    r = router(policy)
    policy.raises = True
    assert r.route(FACTS).endpoint.id.startswith("here-")
    assert r.fallback_picks == 1
    assert r.last_fault == "First raised ZeroDivisionError('oops')"


def test_a_policy_that_overruns_its_budget_is_demoted() -> None:
    """Slowness is measured through the clock."""
    clock = ManualClock()
    policy = First(clock)
    r = Router(endpoints(1, 1), policy, clock, Random(1), time_budget=0.002)
    policy.takes = 0.001
    r.route(FACTS)
    assert r.fallback_picks == 0
    policy.takes = 0.003
    r.route(FACTS)
    assert r.fallback_picks == 1
    assert r.last_fault == "First took over 2 ms"


def test_a_policy_cannot_pick_what_is_not_on_offer() -> None:
    """A stranger, an unavailable one, an endpoint already tried, or nothing sensible: the fallback picks."""
    policy = First()
    r = router(policy)
    r.set_healthy("here-2", False)
    for wrong in (EndpointState(endpoints(1)[0]), r.find("here-2"), "here-1"):
        policy.picks = wrong
        assert r.route(FACTS).state in r.available
    policy.picks = r.find("here-0")
    assert r.route(RequestFacts(tried=frozenset({"here-0"}))).endpoint.id == "here-1"
    assert r.fallback_picks == 4


def test_a_broken_fallback_costs_no_request_either() -> None:
    """Where policy and fallback both raise, the first available endpoint is taken, and the fault counted once."""
    policy, fallback = First(), First()
    policy.raises = fallback.raises = True
    r = Router(endpoints(1, 1), policy, ManualClock(), Random(1), fallback=fallback)
    assert r.route(FACTS).state is r.available[0]
    assert r.fallback_picks == 1


def test_the_fallback_can_be_chosen() -> None:
    """Who demotes may say to whom."""
    policy = First()
    policy.raises = True
    r = Router(endpoints(1, 1, 1), policy, ManualClock(), Random(1), fallback=RoundRobin(Random(1)))
    assert len({r.route(FACTS).endpoint.id for _ in range(3)}) == 3


def test_hooks_hear_what_happens() -> None:
    """members_changed at once and on replace, observe after the count is down, tick when ticked."""
    policy = Listening()
    r = router(policy)
    r.settle(r.route(FACTS), outcome(ended=0.5))
    r.tick()
    r.replace(endpoints(1))
    assert policy.heard == [
        ("members_changed", 3),
        ("observe", "here-0", 0, OutcomeKind.OK, 0.5),
        ("tick", 0.0),
        ("members_changed", 1),
    ]


def test_a_hook_that_raises_costs_nothing() -> None:
    """The request is settled; the fault is noted."""

    class Broken(First):
        def observe(self, state: EndpointState, result: Outcome, now: float) -> None:
            raise KeyError("x")

    r = router(Broken())
    r.settle(r.route(FACTS), outcome())
    assert r.find("here-0").in_flight == 0
    assert r.last_fault == "Broken raised KeyError('x') in observe"


def test_replace_keeps_the_state_of_who_stays() -> None:
    """Same id, same counts; new ones start empty, and the order is the new configuration's."""
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


def test_who_was_removed_can_still_be_settled() -> None:
    """It takes no more requests, and its last ones end in order, even if it was full."""
    r = router(members=[Endpoint("old", "http://x", "here", max_in_flight=1)])
    held = r.route(FACTS)
    r.replace(endpoints(1))
    r.settle(held, outcome())
    assert held.state.in_flight == 0
    assert not held.state.available
    assert [state.id for state in r.available] == ["here-0"]
    with pytest.raises(UnknownEndpoint, match="no endpoint 'old'; known: here-0"):
        r.find("old")


def test_a_new_address_is_a_new_place() -> None:
    """Latency that was learned at the old address is not held against the new one."""
    r = router()
    r.settle(r.route(FACTS), outcome())
    assert r.find("here-0").is_measured(0.1)
    r.replace([Endpoint("here-0", "http://elsewhere", "here")])
    assert not r.find("here-0").is_measured(0.1)


def test_a_duplicate_id_changes_nothing() -> None:
    """The configuration is refused as a whole."""
    r = router()
    with pytest.raises(DuplicateEndpoint, match="two endpoints have the id 'here-0'"):
        r.replace(endpoints(1) + endpoints(1))
    assert len(r.states) == 3


def test_set_policy_takes_effect_at_once() -> None:
    """The next request is the new policy's, and it is told the members."""
    r, policy = router(), Listening()
    r.set_policy(policy)
    assert r.policy is policy
    assert policy.heard == [("members_changed", 3)]


def test_the_clock_of_the_machine_is_monotonic() -> None:
    """It never steps back."""
    clock = MonotonicClock()
    assert clock.now() <= clock.now()


def test_a_state_describes_itself() -> None:
    """Its repr is what a failing test shows: load, and why it is not available."""
    r = router()
    r.set_enabled("here-0", False)
    r.set_healthy("here-0", False)
    assert repr(r.states[:2]) == "[<here-0 0 in flight drain unhealthy>, <here-1 0 in flight>]"


def test_the_limit_in_all_may_change() -> None:
    """Lower: those who are too many end first. Higher: whoever waits is told, once there is room."""
    clock, rng = ManualClock(), Random(1)
    router = Router(endpoints(1, 1), First(), clock, rng, in_flight_limit=2)
    told: list[bool] = []
    router.on_available = lambda: told.append(router.has_room)
    held = [router.route(FACTS), router.route(FACTS)]
    router.apply_in_flight_limit(1)
    router.settle(held.pop(), outcome())
    assert (router.has_room, told) == (False, [])
    router.apply_in_flight_limit(2)
    assert (router.has_room, told) == (True, [True])
    router.apply_in_flight_limit(None)
    assert told == [True]
    router.settle(held.pop(), outcome())


class Probing(First):
    """Wants the last two probed, after each pick."""

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        self.states = states

    def probes(self, now: float) -> list[EndpointState]:
        self.heard.append(("probes", self.states[0].in_flight, now))
        return self.states[1:]

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        self.heard.append(("probed", state.id, load.in_flight, latency, now))


def test_probes_are_asked_for_and_heard_of() -> None:
    """After each pick, the request counted in; what comes back is the policy's; who is gone by then is not."""
    policy, asked = Probing(), list[str]()
    r = router(policy)
    r.on_probe = lambda state: asked.append(state.id)
    r.route(FACTS)
    assert asked == ["here-1", "here-2"]
    r.probed(r.states[1], ReportedLoad(in_flight=3), 0.02, 0.5)
    gone = r.states[2]
    r.replace(endpoints(1, 1))
    r.probed(gone, ReportedLoad(in_flight=3), 0.02, 0.5)
    assert policy.heard == [("probes", 1, 0.0), ("probed", "here-1", 3, 0.02, 0.5)]


def test_nobody_is_asked_for_probes_that_nobody_sends() -> None:
    """Without a prober the hook is not called; without the hook the prober is not, nor is an answer a fault."""
    policy = Probing()
    r = router(policy)
    r.route(FACTS)
    assert policy.heard == []
    r.on_probe = lambda state: policy.heard.append(("asked",))
    r.set_policy(First())
    r.route(FACTS)
    r.probed(r.states[0], ReportedLoad(), 0.02, 0.5)
    assert (policy.heard, r.last_fault) == ([], None)


def test_a_fault_in_probing_costs_no_request() -> None:
    """Whatever the policy or the prober raises is noted, and the request is under way."""
    policy = Probing()
    r = router(policy)

    def broken(state: EndpointState) -> None:
        raise OSError("no socket left")

    r.on_probe = broken
    assert r.route(FACTS).endpoint.id == "here-0"
    assert (r.fallback_picks, r.last_fault) == (0, "Probing raised OSError('no socket left') in _probe")


@pytest.mark.parametrize("wrap", [SingleRegion, RegionRoundRobin, RegionAware])
def test_an_inner_policy_may_probe(wrap: Any) -> None:
    """Whoever wraps it hands its probes and their answers on; who has no such child has no such hooks."""
    children: list[Probing] = []

    def inner(rng: Random) -> Policy:
        children.append(Probing())
        return children[-1]

    options = {"region": "here"} if wrap is SingleRegion else {}
    r, asked = router(wrap(Random(1), inner=inner, **options)), list[str]()
    r.on_probe = lambda state: asked.append(state.id)
    r.route(FACTS)
    r.probed(r.states[1], ReportedLoad(in_flight=3), 0.02, 0.5)
    assert asked == ["here-1", "here-2"]
    assert children[-1].heard == [("probes", 1, 0.0), ("probed", "here-1", 3, 0.02, 0.5)]
    assert not hasattr(wrap(Random(1), **options), "probes")
