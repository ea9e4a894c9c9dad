"""Adaptive limits before a simulated worker: they settle near what it can do, do not collapse, and recover.

Rule of this file: a worker has slots and a queue of its own, service takes exponential times, and time is counted. A
limit at rest is expected near 1.5 times the slots and some; what matters is that every slot has work and that the
worker's queue stays short.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from statistics import mean

import pytest

from policies.contract import ManualClock
from policies.endpoint.concurrency_limit import Concurrency, ConcurrencyRules
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.least_in_flight import LeastInFlight
from policies.routing.assignment import Assignment
from policies.routing.router import Router

SERVICE = 0.1
WAITING = 50
"""Requests that wait before the limit, at most: more are lost."""

OfTime = Callable[[float], float]


class Simulation:
    """A worker with `slots`, `round_trip` seconds away, behind a limit. `rate` is of requests offered per second at a
    time, `slowness` multiplies service times. `log` has (time, limit, requests at the worker) of each answer."""

    def __init__(
        self,
        slots: int,
        rate: OfTime,
        rules: ConcurrencyRules | None = None,
        round_trip: float = 0.0,
        slowness: OfTime = lambda now: 1.0,
        service: float = SERVICE,
    ) -> None:
        self.concurrency = Concurrency(rules or ConcurrencyRules())
        self.log: list[tuple[float, int, int]] = []
        self._slots = slots
        self._rate = rate
        self._round_trip = round_trip
        self._slowness = slowness
        self._service = service
        self._rng = Random(1)
        self._events: list[tuple[float, int, str, tuple[float, int]]] = []
        self._order = 0
        self._in_flight = self._busy = 0
        self._before_limit = 0
        self._at_worker: deque[tuple[float, int]] = deque()

    def run(self, seconds: float) -> None:
        """From the beginning."""
        self._at(0.0, "offered")
        while self._events[0][0] <= seconds:
            now, _, what, sent = heapq.heappop(self._events)
            getattr(self, f"_{what}")(now, sent)

    def limits(self, since: float, until: float = inf) -> list[int]:
        return [limit for at, limit, _ in self.log if since <= at < until]

    def throughput(self, since: float, until: float) -> float:
        """Answers per second."""
        return len(self.limits(since, until)) / (until - since)

    def _at(self, at: float, what: str, sent: tuple[float, int] = (0.0, 0)) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, what, sent))

    def _offered(self, now: float, _: object) -> None:
        self._at(now + self._rng.expovariate(self._rate(now)), "offered")
        self._before_limit = min(WAITING, self._before_limit + 1)
        self._let_go(now)

    def _let_go(self, now: float) -> None:
        while self._before_limit and self._in_flight < self.concurrency.limit:
            self._before_limit -= 1
            self._at(now + self._round_trip / 2, "arrived", (now, self._in_flight))
            self._in_flight += 1

    def _arrived(self, now: float, sent: tuple[float, int]) -> None:
        self._at_worker.append(sent)
        self._work(now)

    def _work(self, now: float) -> None:
        while self._at_worker and self._busy < self._slots:
            self._busy += 1
            time = self._rng.expovariate(1 / self._service) * self._slowness(now)
            self._at(now + time, "served", self._at_worker.popleft())

    def _served(self, now: float, sent: tuple[float, int]) -> None:
        self._busy -= 1
        self._at(now + self._round_trip / 2, "answered", sent)
        self._work(now)

    def _answered(self, now: float, sent: tuple[float, int]) -> None:
        self._in_flight -= 1
        sent_at, ahead = sent
        self.concurrency.record(now - sent_at, ahead, now)
        self.log.append((now, self.concurrency.limit, self._busy + len(self._at_worker)))
        self._let_go(now)


def steady(rate: float) -> OfTime:
    return lambda now: rate


@pytest.mark.parametrize("slots", [4, 8, 40])
def test_it_settles_near_what_the_worker_can_do(slots: int) -> None:
    """At one and a half times the capacity the limit stays between the slots and twice as many and a little: every
    slot has work, and whoever is too much waits before the limit and not in the worker."""
    capacity = slots / SERVICE
    worker = Simulation(slots, steady(1.5 * capacity))
    worker.run(180)
    assert slots <= mean(worker.limits(90)) <= 2 * slots + 8
    assert worker.throughput(60, 180) > 0.93 * capacity
    assert mean(inner_policies for at, _, inner_policies in worker.log if at > 90) < 2 * slots + 8


@pytest.mark.no_cover
def test_it_does_not_run_away_however_long_the_flood() -> None:
    """Twenty minutes of it: the limit does not learn the queue that it allows."""
    worker = Simulation(8, steady(120))
    worker.run(1200)
    assert max(worker.limits(900)) <= 24
    assert worker.throughput(900, 1200) > 0.93 * 80


def test_it_rises_quickly_to_a_large_worker() -> None:
    """A hundred slots, and a start at 20: nine tenths of the capacity is used within ten seconds."""
    worker = Simulation(100, steady(1500))
    worker.run(15)
    assert worker.throughput(10, 15) > 900


def test_a_far_worker_is_kept_busy() -> None:
    """Half a second away, what is on the wire is no queue: one slot needs 26 in flight."""
    worker = Simulation(1, steady(75), round_trip=0.5, service=0.02)
    worker.run(180)
    assert mean(worker.limits(90)) > 26
    assert worker.throughput(90, 180) > 0.9 * 50


def test_a_worker_that_slows_and_recovers() -> None:
    """Three times slower for two minutes: it keeps all its slots busy meanwhile and afterwards."""
    worker = Simulation(8, steady(120), slowness=lambda now: 3.0 if 60 <= now < 180 else 1.0)
    worker.run(300)
    assert worker.throughput(100, 180) > 0.9 * 80 / 3
    assert worker.throughput(220, 300) > 0.93 * 80
    assert max(worker.limits(240)) <= 30


def test_a_limit_that_is_not_in_use_stays() -> None:
    """At a tenth of the load nothing is found out about the limit, so it is left alone."""
    worker = Simulation(8, steady(8))
    worker.run(120)
    assert set(worker.limits(0)) == {20}


def test_it_keeps_to_its_bounds() -> None:
    rules = ConcurrencyRules(initial=12, minimum=10, maximum=14)
    for slots in (1, 100):
        worker = Simulation(slots, steady(15 * slots), rules)
        worker.run(60)
        assert {10, 14} >= {min(worker.limits(30)), max(worker.limits(30))}


# --- in the router


def router(max_in_flight: int | None = None) -> tuple[Router, ManualClock]:
    clock = ManualClock()
    endpoint = Endpoint("a", "http://a", "r", max_in_flight=max_in_flight)
    rules = ConcurrencyRules(initial=20, maximum=60)
    return Router([endpoint], LeastInFlight(Random(1)), clock, Random(1), concurrency=rules), clock


def rounds(
    r: Router, clock: ManualClock, latencies: Sequence[float], kind: OutcomeKind = OutcomeKind.OK
) -> None:
    """As many requests at once as may be, again and again, all answered after so long."""
    for latency in latencies:
        taken = []
        while r.has_room:
            taken.append(r.route(RequestFacts()))
        sent_at, clock.time = clock.time, clock.time + latency
        for one in taken:
            r.settle(one, Outcome(kind, 200, sent_at, clock.time, clock.time))


def test_the_router_goes_by_it() -> None:
    """The endpoint is full where the limit stands; when it rises, whoever waits is told."""
    r, clock = router()
    told = []
    r.on_available = lambda: told.append(r.find("a").limit)
    rounds(r, clock, [0.1] * 50)
    assert r.find("a").limit > 30
    assert told
    risen = r.find("a").limit
    rounds(r, clock, [2.0] * 40)
    assert r.find("a").limit < risen
    assert r.in_flight == 0
    assert r.has_room


def test_a_limit_that_falls_below_what_is_there() -> None:
    """Nobody is sent until enough have come back."""
    r, clock = router()
    rounds(r, clock, [0.1] * 100)
    state = r.find("a")
    taken: deque[Assignment] = deque()
    while state.in_flight <= state.limit:
        while r.has_room:
            taken.append(r.route(RequestFacts()))
        one = taken.popleft()
        clock.time += 0.1
        r.settle(one, Outcome(OutcomeKind.OK, 200, one.routed_at, clock.time, clock.time))
    while taken:
        assert r.has_room == (state.in_flight < state.limit)
        r.settle(taken.popleft(), Outcome(OutcomeKind.OK, 200, 0.0, 0.1, clock.time))
    assert r.has_room


def test_it_is_never_above_what_is_stated() -> None:
    r, clock = router(max_in_flight=15)
    rounds(r, clock, [0.1] * 40)
    assert r.find("a").limit == 15


@pytest.mark.no_cover
def test_failures_that_are_quick_prove_nothing() -> None:
    """Only timeouts tell of load."""
    r, clock = router()
    rounds(r, clock, [0.001] * 1500, OutcomeKind.RESET)
    concurrency = r.find("a").concurrency
    assert concurrency is not None
    assert (concurrency.limit, concurrency.short) == (20, inf)
    rounds(r, clock, [0.1] * 100)
    risen = concurrency.limit
    rounds(r, clock, [25.0] * 9, OutcomeKind.TIMEOUT)
    assert concurrency.limit < risen / 2


def test_another_address_is_another_worker() -> None:
    r, clock = router()
    rounds(r, clock, [0.1] * 40)
    r.replace([Endpoint("a", "http://b", "r")])
    assert r.find("a").limit == 20
    assert Router([Endpoint("a", "http://a", "r")], r.policy, clock, Random(1)).find("a").concurrency is None
