"""Routers of several processes that see each other's load: on one board, in one process, in time that is counted."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest

from balancer.process.siblings import LONGEST, SHORTEST, SLICE, Siblings
from balancer.shared_counters import SharedCounters
from policies import registry
from policies.contract import ManualClock
from policies.endpoint.concurrency_limit import ConcurrencyRules
from policies.endpoint.process_share import share
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.health.health import Health
from policies.health.slow_start import SlowStart
from policies.routing.assignment import Assignment
from policies.routing.router import Router

FACTS = RequestFacts(region="r")


class Proxy:
    """Some routers before the same endpoints, each with its page."""

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
        self.said: list[str] = []
        self.board = SharedCounters(processes, capacity)
        limits = limits or (None,) * endpoints
        self.endpoints = [
            Endpoint(f"e{at}", f"http://e{at}", "r", 1.0, limit) for at, limit in enumerate(limits)
        ]
        self.routers = [self.router(policy, seed) for seed in range(processes)]
        self.neighbours = [
            Siblings(router, self.board, index, self.said.append) for index, router in enumerate(self.routers)
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
        for neighbours in self.neighbours:
            neighbours.look(self.clock.now())

    def sweep(self) -> None:
        for neighbours in (*self.neighbours, *self.neighbours):
            neighbours.sweep(self.clock.now())


def test_what_is_in_flight_elsewhere_is_seen() -> None:
    """After a look both know of all; each tells its own apart; and it goes as it came."""
    proxy = Proxy(None)
    one, other = (router.find("e0") for router in proxy.routers)
    kept = [proxy.routers[0].route(FACTS), proxy.routers[0].route(FACTS), proxy.routers[1].route(FACTS)]
    proxy.look()
    assert (one.in_flight, one.in_flight_here, one.elsewhere) == (3, 2, 1)
    assert (other.in_flight, other.in_flight_here, other.elsewhere) == (3, 1, 2)
    for index, assignment in zip((0, 0, 1), kept, strict=True):
        proxy.settle(index, assignment)
    proxy.look()
    assert (one.in_flight, other.in_flight, one.elsewhere, other.elsewhere) == (0, 0, 0, 0)


def test_a_pick_looks_when_the_last_look_is_old() -> None:
    """Not before, because a look costs as much as there are endpoints."""
    proxy = Proxy(None)
    proxy.routers[0].route(FACTS)
    assert proxy.routers[1].route(FACTS).in_flight_at_send == 1
    proxy.routers[0].route(FACTS)
    assert proxy.routers[1].route(FACTS).in_flight_at_send == 2
    proxy.clock.time += SHORTEST
    assert proxy.routers[1].route(FACTS).in_flight_at_send == 4


@pytest.mark.parametrize(
    ("endpoints", "per_second", "period"),
    [
        (10, 10_000, SHORTEST),
        (1000, 10_000, 0.0125),
        (1000, 1000, 0.125),
        (100, 10, 0.02),
        (2000, 10, LONGEST),
    ],
)
def test_a_look_costs_the_same_for_each_pick(endpoints: int, per_second: int, period: float) -> None:
    """However many endpoints there are; but none is older than the longest, nor follows another at once."""
    proxy = Proxy(endpoints=endpoints, capacity=2000)
    router = proxy.routers[0]
    for _ in range(per_second):
        router.route(FACTS)
        proxy.clock.time += 1 / per_second
    now = proxy.clock.time
    proxy.neighbours[0].look(now)
    for _ in range(per_second // 10 or 1):
        router.route(FACTS)
    proxy.clock.time = now = now + 0.1
    proxy.neighbours[0].look(now)
    assert router.look_at - now == pytest.approx(period)


def test_the_dead_do_not_haunt_the_living() -> None:
    """A page that the supervisor has cleared counts for nothing, and its next owner is found in other rows."""
    proxy = Proxy(None, None)
    for _ in range(4):
        proxy.routers[0].route(FACTS)
    proxy.look()
    states = [proxy.routers[1].find(name) for name in ("e0", "e1")]
    assert [state.in_flight for state in states] == [2, 2]
    proxy.board.pages[0].clear()
    proxy.look()
    assert [state.in_flight for state in states] == [0, 0]
    proxy.endpoints.reverse()
    again = proxy.router("round-robin", 7)
    Siblings(again, proxy.board, 0, proxy.said.append)
    busy = again.route(FACTS).state.id
    proxy.look()
    assert {state.id: state.in_flight for state in states} == {"e0": 0, "e1": 0} | {busy: 1}


def test_endpoints_come_and_go() -> None:
    """Each process changes when it does; what is in flight at one that is gone is settled and told to nobody."""
    proxy = Proxy(None, None)
    left = [proxy.routers[0].route(FACTS) for _ in range(2)]
    gone = next(assignment for assignment in left if assignment.state.id == "e0")
    new = [proxy.endpoints[1], Endpoint("e2", "http://e2", "r")]
    proxy.routers[0].replace(new)
    proxy.look()
    assert [state.in_flight for state in proxy.routers[1].states] == [0, 1]
    assert proxy.routers[0].route(FACTS).state.id in ("e1", "e2")
    proxy.settle(0, gone)
    proxy.routers[1].replace(new)
    proxy.look()
    assert sum(state.in_flight for state in proxy.routers[1].states) == 2
    proxy.routers[0].replace(proxy.endpoints)
    proxy.look()
    assert proxy.routers[0].find("e0").in_flight == 0


def test_beyond_the_capacity_each_sees_its_own() -> None:
    """Said once; nothing breaks."""
    proxy = Proxy(endpoints=4, capacity=2)
    for _ in range(8):
        proxy.routers[0].route(FACTS)
    proxy.look()
    assert [state.in_flight for state in proxy.routers[0].states] == [2, 2, 2, 2]
    assert [state.in_flight for state in proxy.routers[1].states] == [2, 2, 0, 0]
    assert len(proxy.said) == 2  # one line from each process
    assert "more than 2 endpoints" in proxy.said[0]


@pytest.mark.parametrize(("whole", "of", "shares"), [(7, 3, [3, 2, 2]), (4, 2, [2, 2]), (1, 3, [1, 1, 1])])
def test_shares_add_up(whole: int, of: int, shares: list[int]) -> None:
    """To the whole; but nobody has none."""
    assert [share(whole, index, of) for index in range(of)] == shares


def test_a_limit_is_that_of_the_unit() -> None:
    """Each process has its share, and what others have in flight does not fill it."""
    proxy = Proxy(3)
    limits = [router.find("e0").limit for router in proxy.routers]
    assert sorted(limits) == [1, 2]
    for router, limit in zip(proxy.routers, limits, strict=True):
        for _ in range(int(limit)):
            assert router.has_room
            router.route(FACTS)
        assert not router.has_room
        proxy.look()
    proxy.routers[0].replace([Endpoint("e0", "http://e0", "r", 1.0, 8)])
    assert proxy.routers[0].find("e0").limit == 4
    assert proxy.routers[0].has_room


def test_latencies_are_pooled() -> None:
    """A process that has sent nothing knows what the other has measured, and forgets it with it."""
    proxy = Proxy(None)
    for _ in range(10):
        assignment = proxy.routers[0].route(FACTS)
        proxy.clock.time += 0.1
        proxy.settle(0, assignment)
    proxy.sweep()
    one, other = (router.find("e0") for router in proxy.routers)
    now = proxy.clock.time
    assert other.is_measured(now)
    assert other.predicted_latency(now) == pytest.approx(one.predicted_latency(now))
    assert other.latency.own().successes == 0.0
    proxy.clock.time += 11.0
    proxy.sweep()
    assert not other.is_measured(proxy.clock.time)


def test_failures_are_pooled() -> None:
    """Who fails at one process is shunned by all."""
    proxy = Proxy(None)
    for _ in range(5):
        assignment = proxy.routers[0].route(FACTS)
        proxy.clock.time += 0.01
        proxy.settle(0, assignment, OutcomeKind.RESET)
    proxy.sweep()
    assert proxy.routers[1].find("e0").latency.failure_share == 1.0


def test_every_endpoint_has_its_turn_in_some_sweeps() -> None:
    """However many there are, one sweep pools a slice of them."""
    proxy = Proxy(endpoints=2 * SLICE + 1, capacity=2 * SLICE + 1)
    last = proxy.routers[0].states[-1]
    assignment = proxy.routers[0].route(FACTS)
    while assignment.state is not last:
        assignment = proxy.routers[0].route(FACTS)
    proxy.clock.time += 0.1
    proxy.settle(0, assignment)
    for _ in range(3):
        proxy.sweep()
    assert proxy.routers[1].states[-1].is_measured(proxy.clock.time)


def test_two_processes_that_see_each_other_do_as_well_as_one() -> None:
    """Ten servers at 90 %: two routers that are blind to each other wait longer than one, two with a board do not."""
    one, blind, seeing = (
        mean_latency(1, sees=False),
        mean_latency(2, sees=False),
        mean_latency(2, sees=True),
    )
    assert seeing < 1.03 * one
    assert blind > 1.05 * one


def mean_latency(processes: int, *, sees: bool) -> float:
    """In service times, of requests that come at random to servers that serve one at a time."""
    proxy = Proxy(endpoints=10, processes=processes, policy="least-in-flight")
    if not sees:
        proxy.routers = [proxy.router("least-in-flight", seed) for seed in range(processes)]
    rng, number, service = Random(1), count(), 0.02
    free = {endpoint.id: 0.0 for endpoint in proxy.endpoints}
    ends: list[tuple[float, int, int, Assignment | None]] = [(0.0, next(number), 0, None)]
    latencies: list[float] = []
    while len(latencies) < 20_000:
        proxy.clock.time, _, index, assignment = heappop(ends)
        now = proxy.clock.time
        if assignment is not None:
            latencies.append(now - assignment.routed_at)
            proxy.settle(index, assignment)
            continue
        index = rng.randrange(processes)
        assignment = proxy.routers[index].route(FACTS)
        name = assignment.state.id
        free[name] = max(free[name], now) + rng.expovariate(1 / service)
        heappush(ends, (free[name], next(number), index, assignment))
        heappush(ends, (now + rng.expovariate(0.9 * 10 / service), next(number), 0, None))
    return sum(latencies) / len(latencies) / service


def test_a_limit_that_was_found_is_divided() -> None:
    """It is found from what the whole unit has in flight, so each process has its share of it, as of one that is
    stated; the smaller of the two counts."""
    proxy = Proxy(None, 4, processes=2, concurrency=ConcurrencyRules(initial=9))
    limits = [[router.find(f"e{at}").limit for router in proxy.routers] for at in range(2)]
    assert sorted(limits[0]) == [4, 5]
    assert limits[1] == [2, 2]


@pytest.mark.parametrize("is_alone", [False, True], ids=["all anew", "one by one"])
def test_a_slow_start_is_divided(is_alone: bool) -> None:
    """What one that is new may hold follows from what the others hold, of the whole unit: as much as if it were one
    process, but for rounding."""
    limits = []
    for processes in (1, 2):
        proxy = Proxy(None, processes=processes, slow_start=10.0)
        for turn in range(80):
            proxy.routers[turn % processes].route(FACTS)
        proxy.look()
        for router in proxy.routers:
            if is_alone:
                router.put(Endpoint("new", "http://new", "r"))
            else:
                router.replace([*proxy.endpoints, Endpoint("new", "http://new", "r")])
        proxy.clock.time += 1.0
        for router in proxy.routers:
            router.tick()
        limits.append([router.find("new").limit for router in proxy.routers])
    assert sum(limits[1]) == limits[0][0]
    assert abs(limits[1][0] - limits[1][1]) <= 1


@pytest.mark.parametrize("is_alone", [False, True], ids=["all anew", "one by one"])
def test_who_is_gone_has_only_our_own(is_alone: bool) -> None:
    """What others have there is not heard of any more: it would be in flight for ever."""
    proxy = Proxy(None, None)
    state, other = (router.find("e0") for router in proxy.routers)
    mine = proxy.routers[0].route(RequestFacts(region="r", tried=frozenset({"e1"})))
    theirs = proxy.routers[1].route(RequestFacts(region="r", tried=frozenset({"e1"})))
    proxy.look()
    assert state.in_flight == other.in_flight == 2
    for router in proxy.routers:
        if is_alone:
            router.drop("e0")
        else:
            router.replace(proxy.endpoints[1:])
    assert state.in_flight == other.in_flight == 1
    proxy.settle(0, mine)
    proxy.settle(1, theirs)
    assert state.in_flight == other.in_flight == 0
