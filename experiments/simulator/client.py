"""Clients, all of them: requests that come when they are due, and what each is told.

Rule of this file: an open loop asks nobody when to send. A closed one sends the next request when one has ended, as an
event of its own, so that a failure that takes no time cannot nest.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from experiments.load.samples import Floats
from experiments.simulator.attempt import Attempt
from experiments.simulator.clock import EventQueue, Event, VirtualClock
from experiments.simulator.columns import Columns, code_of
from experiments.simulator.demand import BATCH, MASK, Demand

if TYPE_CHECKING:
    from experiments.simulator.unit import SimulatedBalancer

TIMEOUT: Final = 3


class Next(Event):
    """A closed loop's next request."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def happen(self, now: float) -> None:
        """It is due."""
        self._client.arrive(now)


class Deadline(Event):
    """When the oldest request that is open has had its time. Timeouts are equal, so they fall due in order."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def happen(self, now: float) -> None:
        """Whoever is overdue gives up."""
        self._client.give_up(now)


class Client:
    """`units` are where requests enter. `left` are still to end; `open` holds the attempt that each is waiting for.

    `flying` counts attempts that no router has settled. `open` is kept where there are timeouts, the oldest first.
    `area` is the integral of the requests that are in the system; by Little's law the sum of their latencies.
    """

    def __init__(
        self, clock: VirtualClock, agenda: EventQueue, demand: Demand, timeout: float, overhead: float
    ) -> None:
        self.clock = clock
        self.timeout = timeout
        self.units: list[SimulatedBalancer] = []
        self._agenda = agenda
        self._demand = demand
        self._overhead = overhead
        self._next_event = Next(self)
        self._deadline = Deadline(self)
        self._deadline_is_set = False
        self.has_timeouts = timeout < inf
        self.flying = 0
        self.begin(Columns(0, None, 0.0), None, 0.0)

    def begin(self, columns: Columns, instants: Floats | None, start: float) -> None:
        """Requests of `columns` are next: at `instants` after `start`, or one for each that ends."""
        self.columns = columns
        self.open: dict[int, Event] = {}
        self._due: dict[int, float] = {}
        self.left = self.count = columns.count
        self.sent = self._promised = 0
        self._instants = instants
        self._start = start
        self._is_closed = instants is None
        self._batch: list[float] = []
        self.area = 0.0
        self._present = 0
        self._changed_at = start
        self._demand.begin()

    def next_at(self) -> float:
        """When the next request of an open loop is due; `inf` after the last."""
        number = self.sent
        if number >= self.count or self._instants is None:
            return inf
        if not number & MASK:
            self._batch = (self._instants[number : number + BATCH] + self._start).tolist()
        return self._batch[number & MASK]

    def start_closed(self, width: int, now: float) -> None:
        """Let so many be outstanding from now on."""
        self._promised = min(width, self.count)
        for _ in range(self._promised):
            self._agenda.add(now, self._next_event)

    def arrive(self, now: float) -> None:
        """The next request is due."""
        number = self.sent
        self.sent = number + 1
        demand = self._demand
        if number >= demand.until:
            demand.renew()
        if self._is_closed:
            self.columns.put_due(now)
        present = self._present
        self.area += present * (now - self._changed_at)
        self._changed_at = now
        self._present = present + 1
        if self.has_timeouts:
            self._due[number] = now
            if not self._deadline_is_set:
                self._deadline_is_set = True
                self._agenda.add(now + self.timeout, self._deadline)
        units = self.units
        if len(units) == 1:
            units[0].start(number, now)
        else:
            units[demand.entrance[number & MASK]].start(number, now)

    def is_open(self, number: int) -> bool:
        """Whether its client still waits."""
        return not self.has_timeouts or number in self._due

    def served(self, number: int, worker: int, now: float) -> None:
        """The client has a good answer, at the first attempt: as `ended`, for nearly all."""
        self.columns.put(number, now, worker)
        self._count_out(number, now)

    def ended(self, number: int, kind: int, status: int, worker: int, attempts: int, now: float) -> None:
        """The client has its answer, or none."""
        self.columns.put(number, now, worker)
        self.columns.put_code(number, code_of(kind, status, attempts))
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

    def give_up(self, now: float) -> None:
        """The deadline of the oldest."""
        self._deadline_is_set = False
        while self._due:
            number, due = next(iter(self._due.items()))
            if due + self.timeout > now:
                self._deadline_is_set = True
                self._agenda.add(due + self.timeout, self._deadline)
                break
            self._time_out(number, now)

    def _time_out(self, number: int, now: float) -> None:
        """It gives up. That it waited for a turn shows when its turn comes."""
        attempt, attempts = self.open.get(number), 0
        if isinstance(attempt, Attempt):
            attempts = attempt.tries
            attempt.post.unit.abandon(attempt, now)
        self.ended(number, TIMEOUT, 0, -1, attempts, now)

    def error(self) -> float:
        """By how much, relatively, Little's law is missed."""
        latencies = float(self.columns.latencies.sum())
        return abs(self.area - latencies) / (1.0 + latencies)
