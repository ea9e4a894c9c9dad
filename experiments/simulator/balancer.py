"""Simulated balancer: the real router, policy and mechanisms, driven by virtual time.

Decisions are made by the balancer's own objects; socket operations become events. Requests are idempotent and small:
they may be retried, and an answer arrives as a whole.
"""

from __future__ import annotations

from functools import partial
from math import inf, nextafter
from typing import Final

from balancer.cluster.wait_queue import RequestQueue, Waiter
from balancer.errors import ForwardingError
from experiments.generator.demand import Batch
from experiments.run_data import Kind
from experiments.scenario.mechanisms import Mechanisms
from experiments.simulator.attempt import BalancerBase, PendingRequest, SimulatedAttempt
from experiments.simulator.client import SimulatedClient
from experiments.simulator.clock import Call, EventQueue, next_sweep
from experiments.simulator.hedges import Hedges
from experiments.simulator.worker_connections import WorkerConnections
from policies.endpoint.state import EndpointState
from policies.errors import NoEndpointAvailable, Overloaded
from policies.facts import Outcome, OutcomeKind, ReportedLoad, RequestFacts
from policies.overload.retry_budget import RetryBudget
from policies.overload.wait_queue import Ticket
from policies.routing.router import Router
from policies.routing.units import OtherUnits

_OK: Final = OutcomeKind.OK
_ERROR_STATUS: Final = OutcomeKind.ERROR_STATUS
_RESET: Final = OutcomeKind.RESET
_REFUSED: Final = OutcomeKind.REFUSED
_TIMEOUT: Final = OutcomeKind.TIMEOUT
_ABANDONED: Final = OutcomeKind.ABANDONED
BAD_GATEWAY: Final = 502
UNAVAILABLE: Final = 503
GATEWAY_TIMEOUT: Final = 504


class Waiting(PendingRequest):
    """A request in the balancer's wait queue (`Waiter`), and the event of its timeout there."""

    deadline = inf
    level = 0

    def __init__(
        self,
        balancer: SimulatedBalancer,
        number: int,
        demand: Batch,
        facts: RequestFacts,
        is_fresh: bool,
        queued_at: float,
        unsent: int,
    ) -> None:
        self.queued_at = queued_at
        self._unsent = unsent
        self.ticket: Ticket[Waiter] | None = None
        self._balancer = balancer
        self._number = number
        self._demand = demand
        self._facts = facts
        self._is_fresh = is_fresh

    def fire(self, now: float) -> None:
        """Reject the request if it still waits."""
        self._balancer.queue.check(self, now)

    @property
    def client(self) -> object:
        """All requests of a simulation are one client's, and wait by age."""
        return None

    def served(self) -> None:
        """Route the request: its turn has come."""
        now = self._balancer.clock.at
        waited = now - self.queued_at
        self._balancer.send(
            self._number, self._demand, self._facts, now, self._is_fresh, waited, self._unsent
        )

    def decline(self, error: ForwardingError) -> None:
        self._balancer.reject(self._number, error.status, self._facts.attempt)

    def abandon(self, now: float) -> int:
        self._balancer.queue.leave(self)
        return self._facts.attempt


class SimulatedBalancer(BalancerBase):
    """One balancer. `units` is its knowledge of the other balancers, `worker_connections` are its connections to each
    worker, in the router's order.

    `requests`, `retried`, `hedged` and `hedges_won` count as in the balancer's status.
    """

    def __init__(
        self,
        router: Router,
        agenda: EventQueue,
        client: SimulatedClient,
        mechanisms: Mechanisms,
        home: str | None,
    ) -> None:
        self.router = router
        self.units = OtherUnits(router)
        self.clock = client.clock
        self._agenda = agenda
        self._client = client
        timeouts, retry = mechanisms.timeouts, mechanisms.retry
        self._queue_timeout, self._first_byte = timeouts.queue, timeouts.first_byte
        self._attempt = inf if timeouts.attempt is None else timeouts.attempt
        self._first = RequestFacts(region=home)
        self.worker_connections: list[WorkerConnections] = []
        self.hedges: Hedges | None = None
        self.queue = RequestQueue(
            router,
            client.clock.now,
            mechanisms.limits.queue,
            timeouts.queue,
            is_adaptive=mechanisms.queue.order == "adaptive",
        )
        self.requests = self.retried = self.hedged = self.hedges_won = 0
        self._retry_limit, self._statuses = mechanisms.retries, frozenset(retry.statuses)
        self._budget = RetryBudget(retry.share, retry.per_second)
        self._has_limits = min(self._first_byte, self._attempt) < client.timeout
        router.on_probe = self._probe

    # --- a request

    def start(self, number: int, demand: Batch, now: float) -> None:
        self.requests += 1
        keys, facts = self._client.keys, self._first
        if keys:
            facts = RequestFacts(region=facts.region, key=keys[number])
        self.send(number, demand, facts, now, False)

    def send(
        self,
        number: int,
        demand: Batch,
        facts: RequestFacts,
        now: float,
        is_fresh: bool,
        waited: float = 0.0,
        unsent: int = 0,
    ) -> None:
        """Route the request and send it to the chosen endpoint, or queue it: first, if its turn has been before.

        `waited`: seconds that it was in the queue before; `unsent`: so many of its attempts were refused.
        """
        client = self._client
        client.routed, client.drawn = number, demand
        try:
            assignment = self.router.route(facts)
        except Overloaded:
            client.ended(number, Kind.ERROR_STATUS, UNAVAILABLE, -1, facts.attempt, now)
            return
        except NoEndpointAvailable:
            waiting = Waiting(self, number, demand, facts, is_fresh, now - waited, unsent)
            self._wait(waiting, number, is_first=waited > 0.0 or facts.attempt > 0)
            return
        connections = self.worker_connections[assignment.state.order]
        attempt = SimulatedAttempt(connections, assignment, number, demand, facts.attempt == 0, now)
        client.flying += 1
        connections.entered(now)
        if client.has_timeouts:
            client.open[number] = attempt
        attempt.waited = waited
        if facts.attempt:
            attempt.tries = facts.attempt + 1
            attempt.unsent = unsent
        elif self.hedges is not None:
            self.hedges.watch(attempt, now)
        self.dispatch(connections, attempt, now, is_fresh)
        if self.hedges is not None and not facts.attempt and self.router.doubts(assignment.state):
            self.hedges.hedge(attempt, now)

    def dispatch(
        self, connections: WorkerConnections, attempt: SimulatedAttempt, now: float, is_fresh: bool
    ) -> None:
        """Send an attempt to its worker, over a connection where connections have a cost."""
        if self._has_limits:
            self._limit(attempt, now)
        if connections.is_linked:
            attempt.is_fresh = is_fresh
            connections.lease(attempt, now)
        elif connections.worker.is_down:
            attempt.refuse(now)
        else:
            connections.worker.arrive(attempt, now)

    def _limit(self, attempt: SimulatedAttempt, now: float) -> None:
        if self._first_byte < self._client.timeout:
            self._end_late(attempt, now)
        if self._attempt < self._first_byte:
            self._agenda.add(next_sweep(now + self._attempt), Call(partial(self._overdue, attempt, False)))

    def _end_late(self, attempt: SimulatedAttempt, sent_at: float) -> None:
        """End the attempt at the timeout of the first byte, which comes before that of attempts in a sweep."""
        self._agenda.add(next_sweep(sent_at + self._first_byte), Call(partial(self._overdue, attempt, True)))

    def returned(self, attempt: SimulatedAttempt, now: float) -> None:
        connections = attempt.connections
        kind, status = attempt.kind, attempt.status
        if connections.is_linked and kind is not _RESET and kind is not _REFUSED:
            connections.give_back(now)
        if kind is not _OK or attempt.is_loser or attempt.rival is not None:
            self._returned_otherwise(attempt, kind, status, now)
            return
        self._count_out(attempt, kind, status, now)
        if attempt.tries == 1:
            self._client.served(attempt.number, connections.worker.number, now)
        else:
            self._answer(attempt, kind, status, now)

    def _answer(self, attempt: SimulatedAttempt, kind: OutcomeKind, status: int, now: float) -> None:
        worker, seen = attempt.connections.worker.number, Kind.OK if kind is _OK else Kind.ERROR_STATUS
        self._client.ended(attempt.number, seen, status, worker, attempt.tries, now)

    def _count_out(self, attempt: SimulatedAttempt, kind: OutcomeKind, status: int, now: float) -> None:
        """Settle an attempt with its outcome at the router."""
        attempt.is_over = True
        attempt.kind = kind
        self._client.flying -= 1
        attempt.ended_at = now
        assignment = attempt.assignment
        attempt.connections.leaving(assignment.routed_at, now)
        first_byte_at = now if status else None
        outcome = Outcome(kind, status or None, attempt.sent_at, first_byte_at, now, 0, 0, attempt.report)
        self.router.settle(assignment, outcome)

    def tick(self, now: float) -> None:
        """Run the router's periodic work, and note the total of requests for the retry budget."""
        self.router.tick()
        self._budget.note(self.requests, now)

    # --- failures

    def _returned_otherwise(
        self, attempt: SimulatedAttempt, kind: OutcomeKind, status: int, now: float
    ) -> None:
        rival = attempt.rival
        if attempt.is_loser:
            self._count_out(attempt, kind, status, now)
        elif rival is not None:
            self._raced(attempt, rival, kind, status, now)
        elif kind is _ERROR_STATUS:
            self._erred(attempt, status, now)
        else:
            self._failed(attempt, kind, now)

    def _raced(
        self, attempt: SimulatedAttempt, rival: SimulatedAttempt, kind: OutcomeKind, status: int, now: float
    ) -> None:
        """Resolve two hedged attempts: an answer wins, a failure leaves the request to the other one."""
        attempt.rival = rival.rival = None
        if kind is _OK or (kind is _ERROR_STATUS and status not in self._statuses):
            rival.is_loser = True
            if self._client.timeout <= self._first_byte < inf:  # it outlasts the client
                self._end_late(rival, rival.sent_at)
            self.hedges_won += not attempt.is_first
            self._count_out(attempt, kind, status, now)
            self._answer(attempt, kind, status, now)
        else:
            self._count_out(attempt, kind, status, now)
            self._stands_for(attempt.number, rival)

    def _stands_for(self, number: int, attempt: SimulatedAttempt) -> None:
        """Make the request wait for this attempt."""
        if self._client.has_timeouts:
            self._client.open[number] = attempt

    def _erred(self, attempt: SimulatedAttempt, status: int, now: float) -> None:
        """Handle an error status: retry, or pass it to the client."""
        may_repeat = status in self._statuses and self._may_repeat(attempt, True, now)
        self._count_out(attempt, _ERROR_STATUS, status, now)
        if may_repeat:
            self._retry(attempt, now, is_fresh=False)
        else:
            self._answer(attempt, _ERROR_STATUS, status, now)

    def _failed(self, attempt: SimulatedAttempt, kind: OutcomeKind, now: float) -> None:
        """Handle an attempt without an answer: retry, or answer 502."""
        self._count_out(attempt, kind, 0, now)
        is_known = kind is not _REFUSED  # a worker may have seen it; else no budget is needed
        attempt.unsent += not is_known
        may_retry = (self._may_repeat if is_known else self._has_another_try)(attempt, False, now)
        if may_retry:
            self._retry(attempt, now, is_fresh=True)
        else:
            self._client.ended(attempt.number, Kind.ERROR_STATUS, BAD_GATEWAY, -1, attempt.tries, now)

    def _overdue(self, attempt: SimulatedAttempt, is_final: bool, now: float) -> None:
        """Handle a timeout of an attempt; `is_final` ends the request with 504 unless a hedged attempt remains.

        Only that one ends a loser."""
        if attempt.is_over or (attempt.is_loser and not is_final):
            return
        if attempt.is_loser or (attempt.rival is not None and is_final):
            self._end_loser(attempt, now)
        elif is_final:
            self._count_out(attempt, _TIMEOUT, 0, now)
            self._client.ended(attempt.number, Kind.ERROR_STATUS, GATEWAY_TIMEOUT, -1, attempt.tries, now)
        elif attempt.rival is None and self._may_repeat(attempt, True, now):
            self._count_out(attempt, _TIMEOUT, 0, now)
            self._retry(attempt, now, is_fresh=False)

    def _end_loser(self, attempt: SimulatedAttempt, now: float) -> None:
        rival = attempt.rival
        if rival is not None:
            attempt.rival = rival.rival = None
            self._stands_for(attempt.number, rival)
        self._count_out(attempt, _TIMEOUT, 0, now)

    def abandon(self, attempt: SimulatedAttempt, now: float) -> None:
        rival = attempt.rival
        attempt.rival = None
        self._count_out(attempt, _ABANDONED, 0, now)
        if rival is not None:
            rival.rival = None
            self._count_out(rival, _ABANDONED, 0, now)

    def _retry(self, attempt: SimulatedAttempt, now: float, *, is_fresh: bool) -> None:
        self.retried += 1
        facts = attempt.assignment.facts
        tried = facts.tried | {attempt.assignment.state.id}
        facts = RequestFacts(region=facts.region, key=facts.key, attempt=attempt.tries, tried=tried)
        self.send(attempt.number, attempt.demand, facts, now, is_fresh, attempt.waited, attempt.unsent)

    def _has_another_try(self, attempt: SimulatedAttempt, needs_other: bool, now: float) -> bool:
        tried = attempt.assignment.facts.tried | {attempt.assignment.state.id}
        return self.router.has_another_try(
            self._retry_limit, attempt.tries, attempt.unsent, tried, needs_other=needs_other
        )

    def _may_repeat(self, attempt: SimulatedAttempt, needs_other: bool, now: float) -> bool:
        return self._has_another_try(attempt, needs_other, now) and self._budget.take(self.requests, now)

    # --- hedging

    def race(self, late: SimulatedAttempt, avoided: frozenset[str], now: float) -> None:
        """Send a hedged attempt to an endpoint outside `avoided`; the first answer wins."""
        facts, attempts = late.assignment.facts, late.tries
        self._client.routed, self._client.drawn = late.number, late.demand
        try:
            facts = RequestFacts(region=facts.region, key=facts.key, attempt=attempts, tried=avoided)
            assignment = self.router.route(facts)
        except NoEndpointAvailable:
            return
        self.hedged += 1
        connections = self.worker_connections[assignment.state.order]
        second = SimulatedAttempt(connections, assignment, late.number, late.demand, False, now)
        self._client.flying += 1
        late.tries = second.tries = attempts + 1
        late.rival, second.rival, second.waited = second, late, late.waited
        connections.entered(now)
        self.dispatch(connections, second, now, False)

    def _probe(self, state: EndpointState) -> None:
        """Send a load probe to a worker for the policy."""
        connections = self.worker_connections[state.order]
        worker, now = connections.worker, self.clock.at
        if not worker.is_down and worker.fault_state.hang < 1.0:
            self._agenda.add(now + worker.half, Call(partial(self._probe_arrived, connections, now)))

    def _probe_arrived(self, connections: WorkerConnections, sent_at: float, now: float) -> None:
        """Take the report at the worker and send it back."""
        worker = connections.worker
        deliver = partial(self._probe_answered, connections.state, worker.report(now), sent_at)
        self._agenda.add(now + worker.half, Call(deliver))

    def _probe_answered(self, state: EndpointState, load: ReportedLoad, sent_at: float, now: float) -> None:
        self.router.probed(state, load, now - sent_at, now)

    # --- wait queue

    def _wait(self, waiting: Waiting, number: int, *, is_first: bool) -> None:
        """Let the request wait for an endpoint with room, or reject it."""
        client, timeout = self._client, self._queue_timeout
        try:
            self.queue.join(waiting, is_first=is_first)
        except ForwardingError as error:
            waiting.decline(error)
            return
        if client.has_timeouts:
            client.open[number] = waiting
        if timeout < client.timeout:
            self._agenda.add(nextafter(waiting.queued_at + timeout, inf), waiting)

    def reject(self, number: int, status: int, attempts: int) -> None:
        self._client.ended(number, Kind.ERROR_STATUS, status, -1, attempts, self.clock.at)
