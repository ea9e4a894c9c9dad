"""One attempt of a request at one worker: on its way there, in service, and on its way back.

An attempt is itself the event, the only one that most requests need; its stage determines the next step. Events for a
settled attempt are ignored.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from experiments.generator.demand import Batch
from experiments.simulator.clock import Event, VirtualClock
from policies.facts import OutcomeKind, ReportedLoad
from policies.routing.assignment import Assignment

if TYPE_CHECKING:
    from experiments.simulator.worker_connections import WorkerConnections

ARRIVING: Final = 0
SERVED: Final = 1
RETURNING: Final = 2

_OK: Final = OutcomeKind.OK


class BalancerBase:
    """Balancer as its clients, attempts and connections see it."""

    clock: VirtualClock

    @abstractmethod
    def start(self, number: int, demand: Batch, now: float) -> None:
        """Accept a client's request."""

    @abstractmethod
    def returned(self, attempt: SimulatedAttempt, now: float) -> None:
        """Process the outcome of an attempt that has returned."""

    @abstractmethod
    def abandon(self, attempt: SimulatedAttempt, now: float) -> None:
        """Abandon the request's attempts after the client has left."""


class PendingRequest(Event):
    """What a request waits for: an attempt, or its place in a balancer's queue."""

    @abstractmethod
    def abandon(self, now: float) -> int:
        """Leave with the client; return the number of attempts."""


class SimulatedAttempt(PendingRequest):
    """One attempt, as an event.

    `number` is the request's, `demand` the batch of service times that contains its own, the same for all its attempts;
    `tries` is the number of its attempts so far, `unsent` that of those which were refused. `kind`
    and `status` are the outcome, which arrives at `due_at`; that instant may be postponed.
    `is_over`: it is settled. `is_loser`: another attempt has
    answered the request. `rival` is the hedged attempt beside it; `is_fresh`: it uses a new connection. `sent_at` is
    the instant at which a connection took it; `waited` are the seconds that the request was in the balancer's queue;
    `work` is its service time in seconds, set where workers report load.
    """

    def __init__(
        self,
        connections: WorkerConnections,
        assignment: Assignment,
        number: int,
        demand: Batch,
        is_first: bool,
        now: float,
    ) -> None:
        self.connections = connections
        self.assignment = assignment
        self.number = number
        self.demand = demand
        self.is_first = is_first
        self.sent_at = now
        self.due_at = self.work = self.ended_at = self.waited = 0.0
        self.stage = ARRIVING
        self.tries = 1
        self.unsent = 0
        self.status = 200
        self.kind = _OK
        self.is_over = self.is_loser = self.is_fresh = False
        self.rival: SimulatedAttempt | None = None
        self.report: ReportedLoad | None = None

    def refuse(self, now: float) -> None:
        """Return the attempt as refused at once: the worker is down."""
        self.kind = OutcomeKind.REFUSED
        self.stage = RETURNING
        self.due_at = now
        self.connections.agenda.add(now, self)

    def abandon(self, now: float) -> int:
        """End the request's attempts: the client has left. Return their number."""
        self.connections.balancer.abandon(self, now)
        return self.tries

    def fire(self, now: float) -> None:
        """Perform the next step of the attempt's stage; one that is over is served to its end nevertheless."""
        stage = self.stage
        if self.is_over and stage != SERVED:
            return
        if stage == RETURNING:
            if self.due_at > now:
                self.connections.agenda.add(self.due_at, self)
            else:
                self.connections.balancer.returned(self, now)
        elif stage == ARRIVING:
            self.connections.worker.arrive(self, now)
        elif self.due_at > now:
            self.connections.agenda.add(self.due_at, self)
        else:
            self.connections.worker.served(self, now)
