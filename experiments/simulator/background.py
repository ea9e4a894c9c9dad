"""Events other than requests: faults, active checks, ticks, and load exchange between balancers.

A periodic event schedules itself again. These events alone would go on for ever, so a run ends with its requests and
not with its event queue.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

from experiments.scenario.event_kinds import FaultState, Pause
from experiments.simulator.balancer import SimulatedBalancer
from experiments.simulator.clock import Call, Event, EventQueue
from experiments.simulator.fleet import SimulatedFleet
from experiments.simulator.model import NO_CONNECTION, CheckModel, SharedModel
from experiments.simulator.worker import SimulatedWorker
from experiments.simulator.worker_connections import WorkerConnections
from policies.clock import SWEEP_PERIOD
from policies.endpoint.state import EndpointState
from policies.errors import UnknownEndpoint
from policies.health.active_checks import CheckState
from policies.routing.units import UnitReport


class Tick(Event):
    """Tick of a router once per second.

    Endpoints that were ejected for failed connections are checked soon: by a request, or without a path of checks by a
    connection alone. `checks` are the balancer's, by worker; `check_of` makes one.
    """

    def __init__(
        self,
        balancer: SimulatedBalancer,
        checks: dict[str, Check],
        check_of: Callable[[str], Check],
        asks: bool,
        agenda: EventQueue,
    ) -> None:
        self._balancer = balancer
        self._checks = checks
        self._check_of = check_of
        self._asks = asks
        self._agenda = agenda

    def fire(self, now: float) -> None:
        router = self._balancer.router
        self._balancer.tick(now)
        if router.health.counts.out[None]:
            for state in router.states:
                if state.record.ends_by_check(is_answered=self._asks):
                    self._check(state.id).soon(now)
        self._agenda.add(now + 1.0, self)

    def _check(self, worker: str) -> Check:
        check = self._checks.get(worker)
        if check is None:
            check = self._checks[worker] = self._check_of(worker)
        return check


class Look(Event):
    """Regular look of a balancer at the endpoints that its policy doubts."""

    def __init__(self, balancer: SimulatedBalancer, agenda: EventQueue) -> None:
        self._balancer = balancer
        self._agenda = agenda

    def fire(self, now: float) -> None:
        for state in self._balancer.router.newly_doubted():
            self._balancer.worker_connections[state.order].open_ahead(now)
        self._agenda.add(now + SWEEP_PERIOD, self)


class Gossip(Event):
    """Periodic exchange of in-flight counts between the balancers."""

    def __init__(self, balancers: list[SimulatedBalancer], every: float, agenda: EventQueue) -> None:
        self._balancers = balancers
        self._every = every
        self._agenda = agenda

    def fire(self, now: float) -> None:
        here = [
            {state.id: state.in_flight_here for state in balancer.router.states}
            for balancer in self._balancers
        ]
        for balancer, own in zip(self._balancers, here, strict=True):
            for state in balancer.router.states:
                state.update_elsewhere(sum(other.get(state.id, 0) for other in here) - own[state.id], now)
        self._agenda.add(now + self._every, self)


class ReportsToOthers(Event):
    """Periodic reports of one balancer to the others, and its sweep: `routing/units.py` between a store's channel."""

    def __init__(
        self,
        balancer: SimulatedBalancer,
        others: list[SimulatedBalancer],
        model: SharedModel,
        agenda: EventQueue,
    ) -> None:
        self._balancer = balancer
        self._others = others
        self._model = model
        self._agenda = agenda
        self._swept_at = 0.0

    def fire(self, now: float) -> None:
        model, balancer = self._model, self._balancer
        report = balancer.units.report(now)
        self._agenda.add(now + model.delay, Heard(id(balancer), report, self._others, model))
        if now >= self._swept_at + SWEEP_PERIOD:
            self._swept_at = now
            balancer.units.sweep(now)
        self._agenda.add(now + model.every, self)


class Heard(Event):
    """Arrival of a balancer's report at the others."""

    def __init__(
        self, sender: int, report: UnitReport, others: list[SimulatedBalancer], model: SharedModel
    ) -> None:
        self._sender = sender
        self._report = report
        self._others = others
        self._model = model

    def fire(self, now: float) -> None:
        for other in self._others:
            other.units.hear(self._sender, self._report, now, self._model.delay, self._model.every)


class Check(Event):
    """Active checks of one worker by one balancer: sent when due, judged when answered.

    Those that only connect are sent when another mechanism wants them, until one succeeds.
    """

    def __init__(
        self,
        balancer: SimulatedBalancer,
        worker: SimulatedWorker,
        model: CheckModel,
        rng: Random,
        agenda: EventQueue,
        now: float,
    ) -> None:
        self._balancer = balancer
        self._id = worker.id
        self._worker = worker
        self._model = model
        self._checks = CheckState(model.rules, rng, now)
        self._agenda = agenda
        self._is_out = False
        self._fault: str | None = None
        self._ejections = 0
        self._connections: WorkerConnections | None = None
        self._fires_at = inf
        if model.asks:
            self._schedule(now)

    def fire(self, now: float) -> None:
        if now >= self._fires_at:
            self._fires_at = inf
        if not self._is_out and now >= self._checks.due_at:  # else it was sent earlier
            self._send(now)

    def soon(self, now: float) -> None:
        """Send the next check early."""
        self._checks.check_soon(now)
        if not self._is_out:
            self._schedule(now)

    def _schedule(self, now: float) -> None:
        at = max(now, self._checks.due_at)
        if at < self._fires_at:
            self._fires_at = at
            self._agenda.add(at, self)

    def _send(self, now: float) -> None:
        worker, state, asks = self._worker, self._state(), self._model.asks
        if not asks and (state is None or not state.record.ends_by_connect):
            return
        self._is_out = True
        waits, self._ejections, self._connections = worker.rtt, 0, None
        self._fault = self._model.fault_of(worker.is_down, worker.is_unhealthy)
        if state is not None:
            self._ejections = state.record.count
            if not worker.is_down:
                self._connections = self._balancer.worker_connections[state.order]
                needs_new = not asks or state.record.ends_by_connect
                waits = self._connections.check(now, needs_new=needs_new, asks=asks)
        if asks:
            waits += max(0.0, worker.paused_until - now - waits)
        if (asks and worker.fault_state.hang >= 1) or waits > self._model.timeout:
            self._fault, waits, self._connections = "no answer", self._model.timeout, None
        self._agenda.add(now + waits, Call(self._judge))

    def _judge(self, now: float) -> None:
        self._is_out = False
        checks, router, asks = self._checks, self._balancer.router, self._model.asks
        if self._worker.is_down:  # since the check was sent
            self._fault = NO_CONNECTION
        elif self._connections is not None:
            self._connections.checked(now)
        has_changed, state = checks.record(self._fault, now), self._state()
        if asks and state is not None and has_changed:
            is_reachable = self._fault != NO_CONNECTION
            router.set_healthy(self._id, checks.is_healthy, is_reachable=is_reachable)
        if state is not None and self._fault is None and state.record.count == self._ejections:
            router.readmit(self._id, is_answered=asks)
        if asks or self._fault is not None:
            self._schedule(now)

    def _state(self) -> EndpointState | None:
        """The balancer's endpoint; None before the worker is added."""
        try:
            return self._balancer.router.find(self._id)
        except UnknownEndpoint:
            return None


class Change(Event):
    """Change of a worker's fault state."""

    def __init__(
        self, fleet: SimulatedFleet, worker: SimulatedWorker, fault_state: FaultState, agenda: EventQueue
    ) -> None:
        self._fleet = fleet
        self._worker = worker
        self._fault_state = fault_state
        self._agenda = agenda

    def fire(self, now: float) -> None:
        worker, fault_state, before = self._worker, self._fault_state, self._worker.fault_state
        worker.fault_state = fault_state
        worker.is_unhealthy = fault_state.is_unhealthy or fault_state.is_draining
        if fault_state.rtt != before.rtt:
            worker.link(worker.model.rtt if fault_state.rtt is None else fault_state.rtt)
        if fault_state.is_gone != before.is_gone:
            self._go_or_return(now)
        if fault_state.is_absent != before.is_absent:
            self._fleet.set_present(worker.id, not fault_state.is_absent)
        if fault_state.is_draining != before.is_draining and not fault_state.is_absent:
            self._fleet.set_enabled(worker.id, not fault_state.is_draining)
        if fault_state.pause is not None and fault_state.pause != before.pause:
            pause = Paused(worker, fault_state.pause, self._agenda)
            self._agenda.add(max(now, self._fleet.began_at + fault_state.pause.since), pause)
        worker.judge()
        worker.reevaluate_hung(now)

    def _go_or_return(self, now: float) -> None:
        if not self._fault_state.is_gone:
            self._worker.is_down = False
        elif self._fault_state.is_graceful:
            self._worker.leave()
        else:
            self._worker.crash(now)


class Paused(Event):
    """GC-like pause of a worker, repeated while its fault state contains it."""

    def __init__(self, worker: SimulatedWorker, pause: Pause, agenda: EventQueue) -> None:
        self._worker = worker
        self._pause = pause
        self._agenda = agenda

    def fire(self, now: float) -> None:
        pause = self._pause
        if self._worker.fault_state.pause != pause:
            return
        self._worker.pause(now, now + pause.length)
        if pause.every:
            self._agenda.add(now + pause.every, self)
