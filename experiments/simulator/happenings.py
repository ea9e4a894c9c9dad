"""Events other than requests: faults, active checks, ticks, and load exchange between balancers.

A periodic event schedules itself again. These events alone would go on for ever, so a run ends with its requests and
not with its event queue.
"""

from __future__ import annotations

from random import Random

from experiments.campaign.timeline import FaultState, Pause
from experiments.simulator.clock import Event, EventQueue
from experiments.simulator.fleet import Fleet
from experiments.simulator.model import CheckModel
from experiments.simulator.unit import SimulatedBalancer
from experiments.simulator.worker import Worker
from policies.endpoint.state import EndpointState
from policies.health.active_checks import CheckState

PROBE_WINDOW_EVERY = 2.0
"""Seconds between checks of an unreachable endpoint, as in the balancer."""


class Tick(Event):
    """Tick of a router once per second; also readmits unreachable endpoints that can be reached again."""

    def __init__(self, unit: SimulatedBalancer, workers: dict[str, Worker], agenda: EventQueue) -> None:
        self._unit = unit
        self._workers = workers
        self._agenda = agenda
        self._count = 0

    def happen(self, now: float) -> None:
        router = self._unit.router
        router.tick()
        self._count += 1
        if self._count % int(PROBE_WINDOW_EVERY) == 0 and router.health.census.out[None]:
            for state in router.states:
                if state.record.is_unreachable and not self._workers[state.id].is_down:
                    router.readmit(state.id)
        self._agenda.add(now + 1.0, self)


class Gossip(Event):
    """Periodic exchange of in-flight counts between the balancers."""

    def __init__(self, units: list[SimulatedBalancer], every: float, agenda: EventQueue) -> None:
        self._units = units
        self._every = every
        self._agenda = agenda

    def happen(self, now: float) -> None:
        here = [{state.id: state.in_flight_here for state in unit.router.states} for unit in self._units]
        for unit, own in zip(self._units, here, strict=True):
            for state in unit.router.states:
                state.update_elsewhere(sum(other.get(state.id, 0) for other in here) - own[state.id], now)
        self._agenda.add(now + self._every, self)


class Check(Event):
    """Active checks of one worker by one balancer: sent when due, judged when answered."""

    def __init__(
        self,
        unit: SimulatedBalancer,
        state: EndpointState,
        worker: Worker,
        model: CheckModel,
        rng: Random,
        agenda: EventQueue,
    ) -> None:
        self._unit = unit
        self._id = state.id
        self._worker = worker
        self._timeout = model.timeout
        self._checks = CheckState(model.rules, rng, 0.0)
        self._agenda = agenda
        self._is_out = False
        self._fault: str | None = None
        agenda.add(self._checks.due_at, self)

    def happen(self, now: float) -> None:
        if self._is_out:
            self._judge(now)
        else:
            self._send(now)

    def _send(self, now: float) -> None:
        worker = self._worker
        self._is_out = True
        waits = worker.rtt
        self._fault = "no connection" if worker.is_down else "unhealthy" if worker.is_unhealthy else None
        if worker.hang >= 1 or waits > self._timeout:
            self._fault, waits = "no answer", self._timeout
        self._agenda.add(now + waits, self)

    def _judge(self, now: float) -> None:
        self._is_out = False
        checks, router = self._checks, self._unit.router
        if checks.record(self._fault, now) and any(state.id == self._id for state in router.states):
            is_reachable = self._fault != "no connection"
            router.set_healthy(self._id, checks.is_healthy, is_reachable=is_reachable)
        self._agenda.add(max(now, checks.due_at), self)


class Change(Event):
    """Change of a worker's fault state."""

    def __init__(self, fleet: Fleet, worker: Worker, trouble: FaultState, agenda: EventQueue) -> None:
        self._fleet = fleet
        self._worker = worker
        self._trouble = trouble
        self._agenda = agenda

    def happen(self, now: float) -> None:
        worker, trouble, before = self._worker, self._trouble, self._worker.trouble
        worker.trouble = trouble
        worker.slow, worker.fail, worker.hang, worker.reset = (
            trouble.slow,
            trouble.fail,
            trouble.hang,
            trouble.reset,
        )
        worker.is_unhealthy = trouble.is_unhealthy or trouble.is_draining
        if trouble.rtt != before.rtt:
            worker.link(worker.model.rtt if trouble.rtt is None else trouble.rtt)
        if trouble.is_gone != before.is_gone:
            self._go_or_return(now)
        if trouble.is_absent != before.is_absent:
            self._fleet.set_present(worker.id, not trouble.is_absent)
        if trouble.is_draining != before.is_draining and not trouble.is_absent:
            self._fleet.set_enabled(worker.id, not trouble.is_draining)
        if trouble.pause is not None and trouble.pause != before.pause:
            pause = Paused(worker, trouble.pause, self._agenda)
            self._agenda.add(max(now, self._fleet.began_at + trouble.pause.since), pause)
        worker.judge()
        worker.reevaluate_hung(now)

    def _go_or_return(self, now: float) -> None:
        if not self._trouble.is_gone:
            self._worker.is_down = False
        elif self._trouble.is_graceful:
            self._worker.leave()
        else:
            self._worker.crash(now)


class Paused(Event):
    """GC-like pause of a worker, repeated while its fault state contains it."""

    def __init__(self, worker: Worker, pause: Pause, agenda: EventQueue) -> None:
        self._worker = worker
        self._pause = pause
        self._agenda = agenda

    def happen(self, now: float) -> None:
        pause = self._pause
        if self._worker.trouble.pause != pause:
            return
        self._worker.pause(now, now + pause.length)
        if pause.every:
            self._agenda.add(now + pause.every, self)
