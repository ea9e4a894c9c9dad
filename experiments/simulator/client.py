"""Simulated clients: arrivals, deadlines and results of requests.

An open loop sends at fixed instants. A closed loop sends the next request when one has ended, as a separate event, so
that a failure that takes no time does not recurse.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from experiments.generator.demand import BATCH, MASK, Batch, Demand
from experiments.recorded.recording import Keys
from experiments.run_data import Floats, Kind
from experiments.simulator.attempt import BalancerBase, PendingRequest
from experiments.simulator.clock import Call, EventQueue, VirtualClock
from experiments.simulator.columns import Columns, code_of


class SimulatedClient:
    """Clients of all balancers, as one load generator.

    `balancers` are the balancers at which requests enter. `left` is the number of requests still to end; `open`
    maps a request to the attempt or the place in a balancer's queue that it waits for, and is kept where there are
    timeouts. `keys` are those of the requests, if they have any. `flying` counts attempts that no router has
    settled. `routed` is the number of the request that is being routed, `drawn` the batch of service times that
    contains its own. `area` is the integral of the number of requests in the system; by Little's law it equals the
    sum of their latencies.
    """

    def __init__(
        self, clock: VirtualClock, agenda: EventQueue, demand: Demand, timeout: float, overhead: float
    ) -> None:
        self.clock = clock
        self.timeout = timeout
        self.balancers: Sequence[BalancerBase] = ()
        self._agenda = agenda
        self._demand = demand
        self._overhead = overhead
        self._next_event = Call(self.arrive)
        self._deadline = Call(self._give_up)
        self._deadline_is_set = False
        self.has_timeouts = timeout < inf
        self.flying = self.routed = 0
        self.drawn: Batch = []
        self.begin(Columns(0, None, 0.0), None, 0.0)

    def begin(self, columns: Columns, instants: Floats | None, start: float) -> None:
        """Start a run of the requests in `columns`: at `instants` after `start`, or as a closed loop."""
        self.columns = columns
        self.open: dict[int, PendingRequest] = {}
        self._due: dict[int, float] = {}
        self.left = self.count = columns.count
        self.sent = self._promised = 0
        self._instants = instants
        self.keys: Keys = ()
        self._start = start
        self._is_closed = instants is None
        self._batch: list[float] = []
        self.area = 0.0
        self._present = 0
        self._changed_at = start
        self._demand.begin()

    def next_at(self) -> float:
        """Instant of the next request of an open loop; `inf` after the last."""
        number = self.sent
        if number >= self.count or self._instants is None:
            return inf
        if not number & MASK:
            self._batch = (self._instants[number : number + BATCH] + self._start).tolist()
        return self._batch[number & MASK]

    def start_closed(self, width: int, now: float) -> None:
        """Start a closed loop with `width` outstanding requests."""
        self._promised = min(width, self.count)
        for _ in range(self._promised):
            self._agenda.add(now, self._next_event)

    def arrive(self, now: float) -> None:
        """Start the next request at a balancer and account for its arrival."""
        number = self.sent
        self.sent = number + 1
        demand = self._demand
        if number >= demand.until:
            demand.renew()
        if self._is_closed:
            self.columns.due[number] = now
        present = self._present
        self.area += present * (now - self._changed_at)
        self._changed_at = now
        self._present = present + 1
        if self.has_timeouts:
            self._due[number] = now
            if not self._deadline_is_set:
                self._deadline_is_set = True
                self._agenda.add(now + self.timeout, self._deadline)
        balancers = self.balancers
        if len(balancers) == 1:
            balancers[0].start(number, demand.seconds, now)
        else:
            balancers[demand.entrance[number & MASK]].start(number, demand.seconds, now)

    def served(self, number: int, worker: int, now: float) -> None:
        """Record a successful answer to the first attempt, the common case of `ended`."""
        self.columns.put(number, now, worker)
        self._count_out(number, now)

    def ended(self, number: int, kind: Kind, status: int, worker: int, attempts: int, now: float) -> None:
        """Record the end of a request, with or without an answer."""
        self.columns.put(number, now, worker)
        self.columns.codes[number] = code_of(kind, status, attempts)
        self._count_out(number, now)

    def _count_out(self, number: int, now: float) -> None:
        if self.has_timeouts:
            del self._due[number]
            self.open.pop(number, None)
        present = self._present
        self.area += present * (now - self._changed_at)
        self._changed_at = now
        self._present = present - 1
        self.left -= 1
        if self._is_closed and self._promised < self.count:
            self._promised += 1
            self._agenda.add(now + self._overhead, self._next_event)

    def _give_up(self, now: float) -> None:
        """Time out the oldest requests and schedule the next deadline: timeouts are equal, so they are in order."""
        self._deadline_is_set = False
        while self._due:
            number, due = next(iter(self._due.items()))
            if due + self.timeout > now:
                self._deadline_is_set = True
                self._agenda.add(due + self.timeout, self._deadline)
                break
            place = self.open.get(number)
            attempts = 0 if place is None else place.abandon(now)
            self.ended(number, Kind.TIMEOUT, 0, -1, attempts, now)

    def error(self) -> float:
        """Relative error of Little's law over all requests."""
        latencies = float(self.columns.latencies.sum())
        return abs(self.area - latencies) / (1.0 + latencies)
