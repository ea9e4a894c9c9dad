"""Routers of sibling processes that share their load through shared counters."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest

from balancer.sharing.shared_counters import SharedCounters
from balancer.sharing.siblings import LONGEST, MIN_INTERVAL_S, SLICE, Siblings
from policies import registry
from policies.contract import ManualClock
from policies.endpoint.concurrency_limit import ConcurrencyRules
from policies.endpoint.state import share_of_process
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.health.health import Health
from policies.health.slow_start import SlowStart
from policies.routing.assignment import Assignment
from policies.routing.router import Router

FACTS = RequestFacts(region="r")


class SiblingRouters:
    """Routers with the same endpoints, each with its page of the shared counters."""

    def __init__(
        self,
        *limits: int | None,
        processes: int = 2,
        capacity: int = 64,
        policy: str = "round-robin",
        endpoints: int = 0,
        concurrency: ConcurrencyRules | None = None,
        slow_start: float = 0.0,
    ) -> None:
        self._concurrency = concurrency
        self._slow_start = slow_start
        self.clock = ManualClock()
        self.logged: list[str] = []
        self.board = SharedCounters(processes, capacity)
        limits = limits or (None,) * endpoints
        self.endpoints = [
            Endpoint(f"e{at}", f"http://e{at}", "r", 1.0, limit) for at, limit in enumerate(limits)
        ]
        self.routers = [self.router(policy, seed) for seed in range(processes)]
        self.siblings = [
            Siblings(router, self.board, index, self.logged.append)
            for index, router in enumerate(self.routers)
        ]

    def router(self, policy: str, seed: int) -> Router:
        rng = Random(seed)
        return Router(
            self.endpoints,
            registry.make(policy, {}, rng),
            self.clock,
            rng,
            concurrency=self._concurrency,
            health=Health(rng, slow_start=SlowStart(self._slow_start)),
        )

    def settle(self, index: int, assignment: Assignment, kind: OutcomeKind = OutcomeKind.OK) -> None:
        now = self.clock.now()
        self.routers[index].settle(assignment, Outcome(kind, 200, assignment.routed_at, now, now))

    def look(self) -> None:
        for siblings in self.siblings:
            siblings.look(self.clock.now())

    def sweep(self) -> None:
        for siblings in (*self.siblings, *self.siblings):
            siblings.sweep(self.clock.now())


def test_requests_in_flight_at_siblings_are_counted() -> None:
    """`in_flight` is the sum, `in_flight_here` the router's own, `elsewhere` that of the sibling."""
    group = SiblingRouters(None)
    one, other = (router.find("e0") for router in group.routers)
    kept = [group.routers[0].route(FACTS), group.routers[0].route(FACTS), group.routers[1].route(FACTS)]
    group.look()
    assert (one.in_flight, one.in_flight_here, one.elsewhere) == (3, 2, 1)
    assert (other.in_flight, other.in_flight_here, other.elsewhere) == (3, 1, 2)
    for index, assignment in zip((0, 0, 1), kept, strict=True):
        group.settle(index, assignment)
    group.look()
    assert (one.in_flight, other.in_flight, one.elsewhere, other.elsewhere) == (0, 0, 0, 0)


def test_pick_reads_shared_counters_when_last_look_is_old() -> None:
    """A look costs time in proportion to the number of endpoints."""
    group = SiblingRouters(None)
    group.routers[0].route(FACTS)
    assert group.routers[1].route(FACTS).in_flight_at_send == 1
    group.routers[0].route(FACTS)
    assert group.routers[1].route(FACTS).in_flight_at_send == 2
    group.clock.time += MIN_INTERVAL_S
    assert group.routers[1].route(FACTS).in_flight_at_send == 4


@pytest.mark.parametrize(
    ("endpoints", "per_second", "period"),
    [
        (10, 10_000, MIN_INTERVAL_S),
        (1000, 10_000, 0.0125),
        (1000, 1000, 0.125),
        (100, 10, 0.02),
        (2000, 10, LONGEST),
    ],
)
def test_look_period_follows_endpoints_per_request(endpoints: int, per_second: int, period: float) -> None:
    """The period grows with the endpoints per request, between `MIN_INTERVAL_S` and `LONGEST`."""
    group = SiblingRouters(endpoints=endpoints, capacity=2000)
    router = group.routers[0]
    for _ in range(per_second):
        router.route(FACTS)
        group.clock.time += 1 / per_second
    now = group.clock.time
    group.siblings[0].look(now)
    for _ in range(per_second // 10 or 1):
        router.route(FACTS)
    group.clock.time = now = now + 0.1
    group.siblings[0].look(now)
    assert router.look_at - now == pytest.approx(period)


def test_cleared_page_counts_for_nothing() -> None:
    """The page's next owner writes other rows."""
    group = SiblingRouters(None, None)
    for _ in range(4):
        group.routers[0].route(FACTS)
    group.look()
    states = [group.routers[1].find(name) for name in ("e0", "e1")]
    assert [state.in_flight for state in states] == [2, 2]
    group.board.pages[0].clear()
    group.look()
    assert [state.in_flight for state in states] == [0, 0]
    group.endpoints.reverse()
    again = group.router("round-robin", 7)
    Siblings(again, group.board, 0, group.logged.append)
    busy = again.route(FACTS).state.id
    group.look()
    assert {state.id: state.in_flight for state in states} == {"e0": 0, "e1": 0} | {busy: 1}


def test_processes_change_endpoints_independently() -> None:
    """Requests in flight at a removed endpoint are settled and not published."""
    group = SiblingRouters(None, None)
    assignments = [group.routers[0].route(FACTS) for _ in range(2)]
    gone = next(assignment for assignment in assignments if assignment.state.id == "e0")
    new = [group.endpoints[1], Endpoint("e2", "http://e2", "r")]
    group.routers[0].replace(new)
    group.look()
    assert [state.in_flight for state in group.routers[1].states] == [0, 1]
    assert group.routers[0].route(FACTS).state.id in ("e1", "e2")
    group.settle(0, gone)
    group.routers[1].replace(new)
    group.look()
    assert sum(state.in_flight for state in group.routers[1].states) == 2
    group.routers[0].replace(group.endpoints)
    group.look()
    assert group.routers[0].find("e0").in_flight == 0


def test_endpoints_beyond_capacity_are_not_shared() -> None:
    """Each process logs it once."""
    group = SiblingRouters(endpoints=4, capacity=2)
    for _ in range(8):
        group.routers[0].route(FACTS)
    group.look()
    assert [state.in_flight for state in group.routers[0].states] == [2, 2, 2, 2]
    assert [state.in_flight for state in group.routers[1].states] == [2, 2, 0, 0]
    assert len(group.logged) == 2  # one line from each process
    assert "more than 2 endpoints" in group.logged[0]


@pytest.mark.parametrize(("whole", "of", "shares"), [(7, 3, [3, 2, 2]), (4, 2, [2, 2]), (1, 3, [1, 1, 1])])
def test_shares_of_a_limit_add_up(whole: int, of: int, shares: list[int]) -> None:
    """Each share is at least 1."""
    assert [share_of_process(whole, index, of) for index in range(of)] == shares


def test_stated_limit_is_divided_among_processes() -> None:
    """Requests in flight at siblings do not fill a process's share."""
    group = SiblingRouters(3)
    limits = [router.find("e0").limit for router in group.routers]
    assert sorted(limits) == [1, 2]
    for router, limit in zip(group.routers, limits, strict=True):
        for _ in range(int(limit)):
            assert router.has_room
            router.route(FACTS)
        assert not router.has_room
        group.look()
    group.routers[0].replace([Endpoint("e0", "http://e0", "r", 1.0, 8)])
    assert group.routers[0].find("e0").limit == 4
    assert group.routers[0].has_room


def test_latencies_are_shared() -> None:
    """The shared measurement expires with its source."""
    group = SiblingRouters(None)
    for _ in range(10):
        assignment = group.routers[0].route(FACTS)
        group.clock.time += 0.1
        group.settle(0, assignment)
    group.sweep()
    one, other = (router.find("e0") for router in group.routers)
    now = group.clock.time
    assert other.is_measured(now)
    assert other.predicted_latency(now) == pytest.approx(one.predicted_latency(now))
    assert other.latency.own().successes == 0.0
    group.clock.time += 11.0
    group.sweep()
    assert not other.is_measured(group.clock.time)


def test_failures_are_shared() -> None:
    group = SiblingRouters(None)
    for _ in range(5):
        assignment = group.routers[0].route(FACTS)
        group.clock.time += 0.01
        group.settle(0, assignment, OutcomeKind.RESET)
    group.sweep()
    assert group.routers[1].find("e0").latency.failure_share == 1.0


def test_sweeps_share_all_endpoints_in_slices() -> None:
    """One sweep shares the latencies of `SLICE` endpoints."""
    group = SiblingRouters(endpoints=2 * SLICE + 1, capacity=2 * SLICE + 1)
    last = group.routers[0].states[-1]
    assignment = group.routers[0].route(FACTS)
    while assignment.state is not last:
        assignment = group.routers[0].route(FACTS)
    group.clock.time += 0.1
    group.settle(0, assignment)
    for _ in range(3):
        group.sweep()
    assert group.routers[1].states[-1].is_measured(group.clock.time)


def test_two_sharing_processes_are_as_fast_as_one() -> None:
    """Ten servers at 90 % load."""
    one, blind, seeing = (
        mean_latency(1, sees=False),
        mean_latency(2, sees=False),
        mean_latency(2, sees=True),
    )
    assert seeing < 1.03 * one
    assert blind > 1.05 * one


def mean_latency(processes: int, *, sees: bool) -> float:
    """Mean latency in service times; Poisson arrivals, servers that serve one request at a time."""
    group = SiblingRouters(endpoints=10, processes=processes, policy="least-in-flight")
    if not sees:
        group.routers = [group.router("least-in-flight", seed) for seed in range(processes)]
    rng, number, service = Random(1), count(), 0.02
    free = {endpoint.id: 0.0 for endpoint in group.endpoints}
    ends: list[tuple[float, int, int, Assignment | None]] = [(0.0, next(number), 0, None)]
    latencies: list[float] = []
    while len(latencies) < 20_000:
        group.clock.time, _, index, assignment = heappop(ends)
        now = group.clock.time
        if assignment is not None:
            latencies.append(now - assignment.routed_at)
            group.settle(index, assignment)
            continue
        index = rng.randrange(processes)
        assignment = group.routers[index].route(FACTS)
        name = assignment.state.id
        free[name] = max(free[name], now) + rng.expovariate(1 / service)
        heappush(ends, (free[name], next(number), index, assignment))
        heappush(ends, (now + rng.expovariate(0.9 * 10 / service), next(number), 0, None))
    return sum(latencies) / len(latencies) / service


def test_found_limit_is_divided_among_processes() -> None:
    """It is found from the requests in flight of all processes; the smaller of stated and found limit counts."""
    group = SiblingRouters(None, 4, processes=2, concurrency=ConcurrencyRules(initial=9))
    limits = [[router.find(f"e{at}").limit for router in group.routers] for at in range(2)]
    assert sorted(limits[0]) == [4, 5]
    assert limits[1] == [2, 2]


@pytest.mark.parametrize("is_single", [False, True], ids=["replace", "put or drop"])
def test_slow_start_limit_is_divided_among_processes(is_single: bool) -> None:
    """The limits of all processes add up to the limit of one process, except for rounding."""
    limits = []
    for processes in (1, 2):
        group = SiblingRouters(None, processes=processes, slow_start=10.0)
        for turn in range(80):
            group.routers[turn % processes].route(FACTS)
        group.look()
        for router in group.routers:
            if is_single:
                router.put(Endpoint("new", "http://new", "r"))
            else:
                router.replace([*group.endpoints, Endpoint("new", "http://new", "r")])
        group.clock.time += 1.0
        for router in group.routers:
            router.tick()
        limits.append([router.find("new").limit for router in group.routers])
    assert sum(limits[1]) == limits[0][0]
    assert abs(limits[1][0] - limits[1][1]) <= 1


@pytest.mark.parametrize("is_single", [False, True], ids=["replace", "put or drop"])
def test_removed_endpoint_drops_the_reports_of_siblings(is_single: bool) -> None:
    """A report about a removed endpoint never changes again and would stay in flight for ever."""
    group = SiblingRouters(None, None)
    state, other = (router.find("e0") for router in group.routers)
    mine = group.routers[0].route(RequestFacts(region="r", tried=frozenset({"e1"})))
    theirs = group.routers[1].route(RequestFacts(region="r", tried=frozenset({"e1"})))
    group.look()
    assert state.in_flight == other.in_flight == 2
    for router in group.routers:
        if is_single:
            router.drop("e0")
        else:
            router.replace(group.endpoints[1:])
    assert state.in_flight == other.in_flight == 1
    group.settle(0, mine)
    group.settle(1, theirs)
    assert state.in_flight == other.in_flight == 0
