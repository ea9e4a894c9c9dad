"""Connections of one balancer to one worker, and the accounting of its requests there.

As in the balancer's pool, the newest idle connection is used first; a request without one waits for a connection that
is being opened, or for one that is returned sooner.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from experiments.scenario.mechanisms import Mechanisms
from experiments.simulator.attempt import BalancerBase, SimulatedAttempt
from experiments.simulator.clock import Call, EventQueue
from experiments.simulator.idle import Idle
from experiments.simulator.worker import SimulatedWorker
from policies.endpoint.state import EndpointState
from policies.facts import OutcomeKind


class WorkerConnections:
    """Connections of one balancer to one worker.

    `is_linked`: connections have a cost here. `setup` is the number of seconds that a new one takes, and `late` the
    extra seconds of its first request. `opened_in_all` and `reused` are counters.

    `area` is the integral of the number in flight, in request-seconds, from the router's count; `sojourns` is the same
    from the requests. By Little's law they are equal.
    """

    def __init__(
        self,
        balancer: BalancerBase,
        worker: SimulatedWorker,
        state: EndpointState,
        agenda: EventQueue,
        mechanisms: Mechanisms,
    ) -> None:
        self.balancer = balancer
        self.worker = worker
        self.state = state
        self.agenda = agenda
        self.area = self.sojourns = self._changed_at = 0.0
        self.routed = self.settled = 0
        self.idle = Idle(mechanisms.pool.idle_timeout, mechanisms.pool.risk, balancer.clock.at)
        self._waiting: deque[SimulatedAttempt] = deque()
        self._unclaimed = 0
        self._connect_timeout = mechanisms.timeouts.connect
        self.opened_in_all = self.reused = 0
        self._round_trip = self._stated = worker.rtt if worker.is_emulated else 0.0
        self.relink()

    def relink(self) -> None:
        """Update the connection costs after a change of the worker's link."""
        worker = self.worker
        self.setup, self.late = worker.rtt * worker.setup_rtts, 0.0
        if worker.is_emulated and worker.setup_rtts == 1:
            self.setup, self.late = 0.0, self.setup
        self.idle.relink(worker.idle_timeout, worker.rtt)
        self.is_linked = worker.rtt > 0.0
        self.state.connections = self if self.is_linked else None

    @property
    def has_idle(self) -> bool:
        """Whether a request sent now finds an idle connection; read by policies."""
        return self.idle.has_idle(self.balancer.clock.at)

    @property
    def connect_time(self) -> float:
        """Seconds that opening a connection took; 0 before the first. At least the round trip that is configured."""
        return max(self._stated, self.setup if self.opened_in_all else 0.0)

    @property
    def round_trip(self) -> float:
        """Seconds of the last TCP handshake; 0 before the first. Emulated distances are configured."""
        return self._round_trip

    def entered(self, now: float) -> None:
        """Account for a request that the router has just counted in."""
        state = self.state
        self.area += (state.in_flight - state.elsewhere - 1) * (now - self._changed_at)
        self._changed_at = now
        self.routed += 1

    def leaving(self, since: float, now: float) -> None:
        """Account for a request routed at `since`, just before the router counts it out."""
        state = self.state
        self.area += (state.in_flight - state.elsewhere) * (now - self._changed_at)
        self._changed_at = now
        self.sojourns += now - since
        self.settled += 1

    def error(self) -> float:
        """Relative error of Little's law for this worker's requests."""
        return abs(self.area - self.sojourns) / (1.0 + self.sojourns)

    # --- connections

    def lease(self, attempt: SimulatedAttempt, now: float) -> None:
        """Send the attempt on a connection, now or when one is ready."""
        self.worker.sent(attempt, now + self.setup + self.late + self.worker.half)
        if attempt.is_fresh:
            attempt.assignment.connecting()
            self._open(attempt, now)
        elif self.idle.lease(now):
            self.reused += 1
            self._depart(attempt, now, 0.0)
        else:
            attempt.assignment.connecting()
            if len(self._waiting) >= self._unclaimed:
                self._unclaimed += 1
                self._open(None, now)
            self._waiting.append(attempt)

    def check(self, now: float, *, needs_new: bool, asks: bool) -> float:
        """Send a check over an idle connection, or a new one; return the seconds until its answer.

        Unless it `asks`, return those until the connection is open."""
        if not self.is_linked:
            return 0.0
        if not needs_new and self.idle.lease_strict(now):
            self.reused += 1
            return self.worker.rtt
        self._count_opened()
        return self.setup + self.late + self.worker.rtt if asks else self.setup

    def open_ahead(self, now: float) -> None:
        """Open a connection that no request waits for."""
        if self.is_linked:
            self._unclaimed += 1
            self._open(None, now)

    def _open(self, attempt: SimulatedAttempt | None, now: float) -> None:
        self.agenda.add(now + min(self.setup, self._connect_timeout), Call(partial(self._opened, attempt)))

    def _opened(self, attempt: SimulatedAttempt | None, now: float) -> None:
        """A connection for `attempt` or the first waiter is open, or the worker refused it, or it took too long."""
        if attempt is None:
            self._unclaimed -= 1
            attempt = self._first_waiting()
        if self.worker.is_down or self.setup > self._connect_timeout:
            if attempt is not None and not attempt.is_over:
                attempt.kind = OutcomeKind.REFUSED
                self.balancer.returned(attempt, now)
            return
        self._count_opened()
        if attempt is None or attempt.is_over:
            self.give_back(now)
        else:
            self._depart(attempt, now, self.late)

    def _count_opened(self) -> None:
        self.opened_in_all += 1
        if not self.worker.is_emulated:
            self._round_trip = self.worker.rtt

    def _first_waiting(self) -> SimulatedAttempt | None:
        waiting = self._waiting
        while waiting:
            attempt = waiting.popleft()
            if not attempt.is_over:
                return attempt
        return None

    def give_back(self, now: float) -> None:
        """Return a connection after a complete answer; the first waiter gets it."""
        attempt = self._first_waiting()
        if attempt is None:
            self.idle.add(now)
        else:
            self.reused += 1
            self._depart(attempt, now, 0.0)

    def _depart(self, attempt: SimulatedAttempt, now: float, late: float) -> None:
        attempt.sent_at = now
        attempt.assignment.connected(now)
        at = now + late + self.worker.half
        self.worker.sent(attempt, at)
        self.agenda.add(at, attempt)
