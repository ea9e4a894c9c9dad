"""Execution of a model in virtual time, with an audit after every run.

A simulation that loses a request or counts one twice raises an error instead of returning results.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from random import Random
from typing import Final

from experiments.errors import ExperimentError
from experiments.recorded.recording import Keys
from experiments.run_data import Floats
from experiments.simulator.background import Checks, ReportsToOthers, change, open_doubted
from experiments.simulator.clock import Call, EventQueue, VirtualClock
from experiments.simulator.columns import Columns
from experiments.simulator.fleet import SimulatedFleet
from experiments.simulator.model import BARE, Model
from policies.clock import SWEEP_PERIOD


class SimulationError(ExperimentError):
    """Defect of the simulator, not of the scenario: a request was lost or counted twice, or the run cannot end."""


TOLERANCE: Final = 1e-6
"""Relative tolerance for sums of millions of floats."""


class Simulation:
    """One simulation of a model. `fleet` holds workers and balancers; `columns` the results of the last requests."""

    def __init__(self, model: Model, seed: int, label: str = "") -> None:
        self.clock = VirtualClock()
        self.agenda = EventQueue()
        self.model = model
        self.fleet = SimulatedFleet(model, seed, label, self.clock, self.agenda)
        self.columns = Columns(0, None, 0.0)
        self._seed = seed
        self._schedule_periodic_events()

    def _schedule_periodic_events(self) -> None:
        model, fleet = self.model, self.fleet
        for number, balancer in enumerate(fleet.balancers):
            rng = Random(f"{self._seed}:checks:{number}")
            checks = Checks(balancer, fleet.workers, model.mechanisms.health_checks, rng)
            if model.mechanisms != BARE or hasattr(balancer.router.policy, "tick"):
                self._repeat(1.0, checks.tick)
            if hasattr(balancer.router.policy, "doubts"):
                self._repeat(SWEEP_PERIOD, partial(open_doubted, balancer))
            if checks.asks:
                checks.begin(self.clock.at)
        if (shared := model.mechanisms.shared).enabled:
            for number, balancer in enumerate(fleet.balancers, 1):
                others = [other for other in fleet.balancers if other is not balancer]
                reports = ReportsToOthers(balancer, others, shared, self.agenda)
                evenly_spread = shared.every * number / len(fleet.balancers)
                self._repeat(shared.every, reports.send, evenly_spread)

    def _repeat(self, seconds: float, what: Callable[[float], None], first: float | None = None) -> None:
        """Call `what` every so many seconds, at `first` for the first time."""

        def again(now: float) -> None:
            what(now)
            self.agenda.add(now + seconds, event)

        event = Call(again)
        self.agenda.add(seconds if first is None else first, event)

    def closed(self, width: int, count: int) -> Columns:
        """Run a closed loop: `count` requests, `width` of them outstanding. Raises `SimulationError`."""
        self._begin(count, None)
        self.fleet.client.start_closed(width, self.clock.at)
        return self._go()

    def open(self, instants: Floats, keys: Keys = ()) -> Columns:
        """Run an open loop: requests due at `instants`, in seconds from now, perhaps with keys. Raises
        `SimulationError`."""
        self._begin(len(instants), instants)
        self.fleet.client.keys = keys
        return self._go()

    def _begin(self, count: int, instants: Floats | None) -> None:
        self.start = self.clock.at
        self.columns = Columns(count, instants, self.start)
        self.fleet.client.begin(self.columns, instants, self.start)

    def begin_steps(self) -> None:
        """Schedule the fault-state changes, relative to the current instant."""
        self.fleet.began_at = self.clock.at
        for step in self.model.steps:
            what = partial(change, self.fleet, self.fleet.worker(step.worker), step.fault_state)
            self.agenda.add(self.clock.at + step.at, Call(what))

    def _go(self) -> Columns:
        """Run until every request has ended and no attempt is in flight."""
        with uncollected():
            turn(self.clock, self.agenda, self.fleet)
        self.columns.flush()
        audit(self.fleet)
        return self.columns


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector: a run creates millions of objects, none of them in a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def turn(clock: VirtualClock, agenda: EventQueue, fleet: SimulatedFleet) -> None:
    """Event loop: execute the next event or send the next request; at the same instant, events come first."""
    client = fleet.client
    next_at = client.next_at()
    while client.left > 0 or client.flying > 0:
        now = agenda.next_at
        if now <= next_at and now < inf:
            clock.at = now
            agenda.take().fire(now)
        elif next_at < inf:
            clock.at = next_at
            client.arrive(next_at)
            next_at = client.next_at()
        else:
            raise SimulationError(f"{client.left} requests wait for something that will never happen")


def audit(fleet: SimulatedFleet) -> None:
    """Check flow conservation, Little's law and utilisation. Raises `SimulationError`."""
    client = fleet.client
    must(
        client.sent == client.count and client.left == 0,
        f"{client.count - client.sent} requests were not sent",
    )
    must(client.error() < TOLERANCE, f"Little's law of the whole is missed by {client.error():g}")
    routed = 0
    for balancer in fleet.balancers:
        must(balancer.router.in_flight == 0, f"{balancer.router.in_flight} requests are in flight for ever")
        routed += balancer.router.routed
    settled = 0
    for connections in fleet.all_connections():
        settled += connections.settled
        must(
            connections.routed == connections.settled,
            f"{connections.state.id}: {connections.routed} went there, {connections.settled} came back",
        )
        must(
            connections.error() < TOLERANCE,
            f"{connections.state.id} under {fleet.model.policy['name']}: "
            f"Little's law is missed by {connections.error():g}",
        )
    must(routed == settled, f"{routed} were routed, {settled} settled")
    for worker in fleet.workers.values():
        ended = worker.done + worker.refused + worker.broken + len(worker.present) + len(worker.hung)
        must(
            worker.arrived + len(worker.hung) == ended,
            f"{worker.id}: {worker.arrived} came, {ended} were served, refused or lost",
        )
        must(worker.error() < TOLERANCE, f"{worker.id}: time and work differ by {worker.error():g}")


def must(is_so: bool, complaint: str) -> None:
    """Raise `SimulationError` with `complaint` unless the condition holds."""
    if not is_so:
        raise SimulationError(complaint)
