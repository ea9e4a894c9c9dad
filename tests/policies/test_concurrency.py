"""Adaptive concurrency limits before a simulated worker: convergence, stability and recovery.

The worker has slots and a queue, service times are exponential, time is virtual. A settled limit is expected near 1.5
times the slots plus a few: every slot has work and the worker's queue stays short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from statistics import mean

import pytest

from policies.algorithms.least_in_flight import LeastInFlight
from policies.contract import ManualClock
from policies.endpoint.concurrency_limit import Concurrency, ConcurrencyRules
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.routing.assignment import Assignment
from policies.routing.router import Router

SERVICE = 0.1
WAITING = 50
"""Requests that wait before the limit, at most; more are dropped."""

OfTime = Callable[[float], float]


class Simulation:
    """A worker with `slots`, `round_trip` seconds away, behind a limit. `rate` is the offered rate per second over
    time, `slowness` multiplies service times. `log` has (time, limit, requests in flight) of each response."""

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
        self._rate = rate
        self._round_trip = round_trip
        self._slowness = slowness
        self._service = service
        self._rng = Random(1)
        self._free = [0.0] * slots

    def run(self, seconds: float) -> None:
        order = count()
        events: list[tuple[float, int, tuple[float, int] | None]] = [(0.0, next(order), None)]
        waiting = in_flight = 0
        while events[0][0] <= seconds:
            now, _, sent = heappop(events)
            if sent is None:
                waiting = min(WAITING, waiting + 1)
                heappush(events, (now + self._rng.expovariate(self._rate(now)), next(order), None))
            else:
                in_flight -= 1
                self.concurrency.record(now - sent[0], sent[1], now)
                self.log.append((now, self.concurrency.limit, in_flight))
            while waiting and in_flight < self.concurrency.limit:
                waiting -= 1
                heappush(events, (self._answered_at(now), next(order), (now, in_flight)))
                in_flight += 1

    def _answered_at(self, sent_at: float) -> float:
        starts_at = max(heappop(self._free), sent_at + self._round_trip / 2)
        ends_at = starts_at + self._rng.expovariate(1 / self._service) * self._slowness(starts_at)
        heappush(self._free, ends_at)
        return ends_at + self._round_trip / 2

    def limits(self, since: float, until: float = inf) -> list[int]:
        return [limit for at, limit, _ in self.log if since <= at < until]

    def throughput(self, since: float, until: float) -> float:
        """Responses per second."""
        return len(self.limits(since, until)) / (until - since)


def steady(rate: float) -> OfTime:
    return lambda now: rate


@pytest.mark.parametrize("slots", [4, 8, 40])
def test_limit_settles_near_the_number_of_slots(slots: int) -> None:
    """At 1.5 times the capacity the limit is between the slots and twice as many plus 8: every slot has work, and the
    excess waits before the limit, not in the worker."""
    capacity = slots / SERVICE
    worker = Simulation(slots, steady(1.5 * capacity))
    worker.run(180)
    assert slots <= mean(worker.limits(90)) <= 2 * slots + 8
    assert worker.throughput(60, 180) > 0.93 * capacity
    assert mean(in_flight for at, _, in_flight in worker.log if at > 90) < 2 * slots + 8


@pytest.mark.no_cover
def test_limit_stays_bounded_under_lasting_overload() -> None:
    """In twenty minutes of overload the latency baseline does not drift towards the queue that the limit allows."""
    worker = Simulation(8, steady(120))
    worker.run(1200)
    assert max(worker.limits(900)) <= 24
    assert worker.throughput(900, 1200) > 0.93 * 80


def test_limit_rises_within_ten_seconds() -> None:
    """100 slots, initial limit 20: nine tenths of the capacity is used after ten seconds."""
    worker = Simulation(100, steady(1500))
    worker.run(15)
    assert worker.throughput(10, 15) > 900


def test_distant_worker_is_kept_busy() -> None:
    """With a round trip of 0.5 s, requests on the wire are no queue: one slot needs 26 in flight."""
    worker = Simulation(1, steady(75), round_trip=0.5, service=0.02)
    worker.run(180)
    assert mean(worker.limits(90)) > 26
    assert worker.throughput(90, 180) > 0.9 * 50


def test_throughput_while_a_worker_is_slow_and_after() -> None:
    """Three times slower for two minutes: all slots stay busy meanwhile and afterwards."""
    worker = Simulation(8, steady(120), slowness=lambda now: 3.0 if 60 <= now < 180 else 1.0)
    worker.run(300)
    assert worker.throughput(100, 180) > 0.9 * 80 / 3
    assert worker.throughput(220, 300) > 0.93 * 80
    assert max(worker.limits(240)) <= 30


def test_unused_limit_is_unchanged() -> None:
    """At a tenth of the load no sample says anything about the limit."""
    worker = Simulation(8, steady(8))
    worker.run(120)
    assert set(worker.limits(0)) == {20}


def test_limit_stays_within_its_bounds() -> None:
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
    """Fill the endpoint and end all requests after each of the latencies."""
    for latency in latencies:
        taken = []
        while r.has_room:
            taken.append(r.route(RequestFacts()))
        sent_at, clock.time = clock.time, clock.time + latency
        for one in taken:
            r.settle(one, Outcome(kind, 200, sent_at, clock.time, clock.time))


def test_router_applies_the_limit_and_reports_when_it_rises() -> None:
    """The endpoint is full at the limit; `on_available` is called when the limit rises."""
    r, clock = router()
    limits = []
    r.on_available = lambda: limits.append(r.find("a").limit)
    rounds(r, clock, [0.1] * 50)
    assert r.find("a").limit > 30
    assert limits
    risen = r.find("a").limit
    rounds(r, clock, [2.0] * 40)
    assert r.find("a").limit < risen
    assert r.in_flight == 0
    assert r.has_room


def test_limit_below_the_requests_in_flight() -> None:
    """No request is sent until enough have ended."""
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


def test_max_in_flight_caps_the_limit() -> None:
    r, clock = router(max_in_flight=15)
    rounds(r, clock, [0.1] * 40)
    assert r.find("a").limit == 15


@pytest.mark.no_cover
def test_only_timeouts_among_failures_change_the_limit() -> None:
    r, clock = router()
    rounds(r, clock, [0.001] * 1500, OutcomeKind.RESET)
    concurrency = r.find("a").concurrency
    assert concurrency is not None
    assert (concurrency.limit, concurrency.short) == (20, inf)
    rounds(r, clock, [0.1] * 100)
    risen = concurrency.limit
    rounds(r, clock, [25.0] * 9, OutcomeKind.TIMEOUT)
    assert concurrency.limit < risen / 2


def test_new_address_starts_with_the_initial_limit() -> None:
    r, clock = router()
    rounds(r, clock, [0.1] * 40)
    r.replace([Endpoint("a", "http://b", "r")])
    assert r.find("a").limit == 20
    assert Router([Endpoint("a", "http://a", "r")], r.policy, clock, Random(1)).find("a").concurrency is None
