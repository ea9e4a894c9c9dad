"""Events other than requests: faults, active checks, ticks, and reports between balancers.

Periodic events alone would go on for ever, so a run ends with its requests and not with its event queue.
"""

from __future__ import annotations

from functools import partial
from math import ceil, inf
from random import Random
from typing import Final

from balancer.config.schema.health import HealthChecksConfig
from experiments.scenario.event_kinds import FaultState, Pause
from experiments.scenario.mechanisms import SharedTable
from experiments.simulator.balancer import SimulatedBalancer
from experiments.simulator.clock import Call, Event, EventQueue, next_sweep
from experiments.simulator.fleet import SimulatedFleet
from experiments.simulator.worker import SimulatedWorker
from experiments.simulator.worker_connections import WorkerConnections
from policies.clock import SWEEP_PERIOD
from policies.endpoint.state import EndpointState
from policies.errors import UnknownEndpoint
from policies.health.active_checks import CheckRules, CheckState, has_passed
from policies.routing.units import UnitReport

HEALTHY: Final = 200
UNHEALTHY: Final = 503
"""Statuses with which workers answer checks."""

NO_CONNECTION: Final = "no connection"
"""Fault of a check whose connection was refused."""


def open_doubted(balancer: SimulatedBalancer, now: float) -> None:
    """Open connections to the endpoints that a balancer's policy doubts."""
    for state in balancer.router.newly_doubted():
        balancer.worker_connections[state.order].open_ahead(now)


class ReportsToOthers:
    """Reports of one balancer to the others, and its sweep: `routing/units.py` between a store's channel."""

    def __init__(
        self,
        balancer: SimulatedBalancer,
        others: list[SimulatedBalancer],
        model: SharedTable,
        agenda: EventQueue,
    ) -> None:
        self._balancer = balancer
        self._others = others
        self._model = model
        self._agenda = agenda
        self._swept_at = 0.0

    def send(self, now: float) -> None:
        units = self._balancer.units
        self._agenda.add(now + self._model.delay, Call(partial(self._heard, units.report(now))))
        if now >= self._swept_at + SWEEP_PERIOD:
            self._swept_at = now
            units.sweep(now)

    def _heard(self, report: UnitReport, now: float) -> None:
        for other in self._others:
            other.units.hear(id(self._balancer), report, now, self._model.delay, self._model.every)


class Checks:
    """Active checks by one balancer: of all workers if they are requests, else of those that others want."""

    def __init__(
        self,
        balancer: SimulatedBalancer,
        workers: dict[str, SimulatedWorker],
        config: HealthChecksConfig,
        rng: Random,
    ) -> None:
        self.asks = config.path is not None
        self._balancer = balancer
        self._workers = workers
        self._config = config
        self._rng = rng
        self._checks: dict[str, Check] = {}

    def begin(self, now: float) -> None:
        for worker in self._workers:
            self._check(worker, now)

    def tick(self, now: float) -> None:
        """Run the balancer's periodic work; check endpoints soon that were ejected for failed connections."""
        router = self._balancer.router
        self._balancer.tick(now)
        if router.health.counts.out[None]:
            for state in router.states:
                if state.record.ends_by_check(is_answered=self.asks):
                    self._check(state.id, now).soon(now)

    def _check(self, worker: str, now: float) -> Check:
        check = self._checks.get(worker)
        if check is None:
            check = Check(self._balancer, self._workers[worker], self._config, self._rng, now)
            self._checks[worker] = check
        return check


class Check(Event):
    """Active checks of one worker by one balancer: sent and timed out by sweeps, judged when answered.

    Those that only connect are sent when another mechanism wants them, until one succeeds.
    """

    def __init__(
        self,
        balancer: SimulatedBalancer,
        worker: SimulatedWorker,
        config: HealthChecksConfig,
        rng: Random,
        now: float,
    ) -> None:
        self._balancer = balancer
        self._id = worker.id
        self._worker = worker
        self._asks, self._status = config.path is not None, config.status
        self._timeout = ceil(config.timeout / SWEEP_PERIOD) * SWEEP_PERIOD
        rules = CheckRules(config.interval, config.fast_interval, config.rise, config.fall)
        self._checks = CheckState(rules, rng, now)
        self._is_out = False
        self._fault: str | None = None
        self._ejections = 0
        self._connections: WorkerConnections | None = None
        self._fires_at = inf
        if self._asks:
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
        at = next_sweep(max(now, self._checks.due_at))
        if at < self._fires_at:
            self._fires_at = at
            self._worker.agenda.add(at, self)

    def _send(self, now: float) -> None:
        worker, state, asks = self._worker, self._state(), self._asks
        if not asks and (state is None or not state.record.ends_by_connect):
            return
        self._is_out = True
        waits, self._ejections, self._connections = worker.rtt, 0, None
        self._fault = self._fault_now()
        if state is not None:
            self._ejections = state.record.count
            if not worker.is_down:
                self._connections = self._balancer.worker_connections[state.order]
                needs_new = not asks or state.record.ends_by_connect
                waits = self._connections.check(now, needs_new=needs_new, asks=asks)
        if asks:
            waits += max(0.0, worker.paused_until - now - waits)
        if (asks and worker.fault_state.hang >= 1) or waits > self._timeout:
            self._fault, waits, self._connections = "no answer", self._timeout, None
        worker.agenda.add(now + waits, Call(self._judge))

    def _fault_now(self) -> str | None:
        """Fault that a check of the worker in its present state finds, None if it passes."""
        if self._worker.is_down:
            return NO_CONNECTION
        status = UNHEALTHY if self._worker.is_unhealthy else HEALTHY
        return None if not self._asks or has_passed(status, self._status) else f"status {status}"

    def _judge(self, now: float) -> None:
        self._is_out = False
        checks, router, asks = self._checks, self._balancer.router, self._asks
        if self._worker.is_down:  # since the check was sent
            self._fault = NO_CONNECTION
        elif self._connections is not None and self._connections.is_linked:
            self._connections.give_back(now)  # it stays open for requests
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


def change(fleet: SimulatedFleet, worker: SimulatedWorker, fault_state: FaultState, now: float) -> None:
    before = worker.fault_state
    worker.fault_state = fault_state
    worker.is_unhealthy = fault_state.is_unhealthy or fault_state.is_draining
    if fault_state.rtt != before.rtt:
        worker.link(worker.model.rtt if fault_state.rtt is None else fault_state.rtt)
    if fault_state.is_gone != before.is_gone:
        if not fault_state.is_gone:
            worker.is_down = False
        elif fault_state.is_graceful:
            worker.leave()
        else:
            worker.crash(now)
    if fault_state.is_absent != before.is_absent:
        fleet.set_present(worker.id, not fault_state.is_absent)
    if fault_state.is_draining != before.is_draining and not fault_state.is_absent:
        fleet.set_enabled(worker.id, not fault_state.is_draining)
    if fault_state.pause is not None and fault_state.pause != before.pause:
        begins = max(now, fleet.began_at + fault_state.pause.since)
        worker.agenda.add(begins, Call(partial(pause_worker, worker, fault_state.pause)))
    worker.judge()
    worker.reevaluate_hung(now)


def pause_worker(worker: SimulatedWorker, pause: Pause, now: float) -> None:
    """Begin a GC-like pause, repeated while the worker's fault state contains it."""
    if worker.fault_state.pause != pause:
        return
    worker.pause(now, now + pause.length)
    if pause.every:
        worker.agenda.add(now + pause.every, Call(partial(pause_worker, worker, pause)))
