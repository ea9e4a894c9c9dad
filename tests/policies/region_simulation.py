"""Simulation of several balancers before the same workers, in virtual time, each with its own view.

Workers are queues with one or more slots and exponential service times. A balancer learns of the others' requests
only from latencies and from the loads that workers report.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from math import exp, inf
from random import Random

from policies import Assignment, Endpoint, Outcome, OutcomeKind, ReportedLoad, RequestFacts, Router
from policies.contract import ManualClock
from policies.policy import PolicyMaker

SERVICE = 0.02
"""Mean seconds between the responses of a busy worker: fifty a second for any number of slots."""

WINDOW = 1.0
"""Seconds over which a worker measures its utilization."""


class Worker:
    """Slots and a queue. `busy` is the share of slots in use, faded over a second."""

    def __init__(self, region: str, slots: int) -> None:
        self.region = region
        self.busy = 0.0
        self._slots = [0.0] * slots  # when each becomes free; a heap
        self._ends: list[float] = []  # when its requests end; a heap
        self._used = 0.0  # slots in use since `_at`
        self._at = 0.0
        self._reported = ReportedLoad()
        self._reported_at = -inf

    def take(self, now: float, service: float) -> float:
        """Return when a request that arrives now will be answered."""
        self._advance(now)
        end = max(now, self._slots[0]) + service
        heapq.heapreplace(self._slots, end)
        heapq.heappush(self._ends, end)
        return end

    def _advance(self, now: float) -> None:
        """Bring `busy` up to now."""
        while self._ends and self._ends[0] <= now:
            self._fade(heapq.heappop(self._ends), 1)
        self._fade(now, 0)

    def _fade(self, now: float, ended: int) -> None:
        used = min(1.0, (len(self._ends) + ended) / len(self._slots))
        keep = exp((self._at - now) / WINDOW)
        self.busy = self.busy * keep + used * (1.0 - keep)
        self._at = now

    def report(self, now: float, stale: float) -> ReportedLoad:
        """The reported load, renewed when it is `stale` seconds old."""
        if now >= self._reported_at + stale:
            self._advance(now)
            self._reported_at = now
            self._reported = ReportedLoad(len(self._ends), None, self.busy)
        return self._reported


class World:
    """Balancers, one for each home region in `homes`, before `size` workers of `slots` slots per region.

        `rtt(home, region)` is the round trip in seconds; `log` has (sent at, home, region, seconds). Workers
    report their
        load if `reports`, renewed every `stale` seconds.
    """

    def __init__(
        self,
        make: PolicyMaker,
        regions: str,
        homes: str,
        rtt: Callable[[str, str], float],
        *,
        size: int = 4,
        slots: int = 1,
        reports: bool = True,
        stale: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.clock = ManualClock()
        self.workers = {f"{region}{at}": Worker(region, slots) for region in regions for at in range(size)}
        members = [Endpoint(name, "http://x", worker.region) for name, worker in self.workers.items()]
        self.homes = homes
        self.routers = [
            Router(members, make(Random(seed + 10 * at)), self.clock, Random(seed + at))
            for at in range(len(homes))
        ]
        self.log: list[tuple[float, str, str, float]] = []
        self._rtt = rtt
        self._reports = reports
        self._stale = stale
        self._service = SERVICE * slots
        self._rng = Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), what))

    def lose(self, region: str) -> None:
        """Make the region's workers unavailable to all balancers."""
        for router in self.routers:
            for name, worker in self.workers.items():
                if worker.region == region:
                    router.set_healthy(name, False)

    def restore(self, region: str) -> None:
        for router in self.routers:
            for name, worker in self.workers.items():
                if worker.region == region:
                    router.set_healthy(name, True)

    def run(self, rates: dict[int, float], seconds: float) -> None:
        """Send at these rates, in requests per second for each balancer by number, for so many seconds."""
        until = self.clock.time + seconds
        for at, rate in rates.items():
            self._arrive(at, rate, until)
        self._tick(int(self.clock.time) + 1.0, until)
        while self._events and self._events[0][0] <= until:
            self.clock.time, _, what = heapq.heappop(self._events)
            what()
        self.clock.time = until

    def _arrive(self, at: int, rate: float, until: float) -> None:
        def arrive() -> None:
            self._send(at)
            self._arrive(at, rate, until)

        when = self.clock.time + self._rng.expovariate(rate)
        if when < until:
            self.at(when, arrive)

    def _tick(self, when: float, until: float) -> None:
        def tick() -> None:
            for router in self.routers:
                router.tick()
            self._tick(when + 1.0, until)

        if when <= until:
            self.at(when, tick)

    def _send(self, at: int) -> None:
        home, router, now = self.homes[at], self.routers[at], self.clock.time
        assignment = router.route(RequestFacts(region=home))
        worker = self.workers[assignment.state.id]
        way = self._rtt(home, worker.region) / 2
        self.at(now + way, lambda: self._arrived(assignment, at, worker, way))

    def _arrived(self, assignment: Assignment, at: int, worker: Worker, way: float) -> None:
        end = worker.take(self.clock.time, self._rng.expovariate(1 / self._service))
        self.at(end, lambda: self._answered(assignment, at, worker, way))

    def _answered(self, assignment: Assignment, at: int, worker: Worker, way: float) -> None:
        report = worker.report(self.clock.time, self._stale) if self._reports else None
        self.at(self.clock.time + way, lambda: self._settle(assignment, at, worker, report))

    def _settle(self, assignment: Assignment, at: int, worker: Worker, report: ReportedLoad | None) -> None:
        now, sent = self.clock.time, assignment.routed_at
        outcome = Outcome(OutcomeKind.OK, 200, sent, now, now, reported_load=report)
        self.routers[at].settle(assignment, outcome)
        self.log.append((sent, self.homes[at], worker.region, now - sent))

    def share(self, home: str, region: str, since: float, until: float) -> float:
        """The share of the requests from `home` that went to `region`."""
        went = [to for sent, of, to, _ in self.log if of == home and since <= sent < until]
        return went.count(region) / len(went)

    def load(self, region: str, since: float, until: float) -> float:
        sent = sum(to == region and since <= at < until for at, _, to, _ in self.log)
        room = sum(worker.region == region for worker in self.workers.values()) / SERVICE
        return sent / (until - since) / room

    def mean(self, home: str, since: float, until: float) -> float:
        took = [seconds for sent, of, _, seconds in self.log if of == home and since <= sent < until]
        return sum(took) / len(took)

    def wait(self, region: str, since: float, until: float) -> float:
        """Mean time in `region`, waiting and service, in seconds."""
        took = [
            seconds - self._rtt(of, to)
            for sent, of, to, seconds in self.log
            if to == region and since <= sent < until
        ]
        return sum(took) / len(took)
