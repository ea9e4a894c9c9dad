"""The oracle `oracle-clairvoyant`: where this request is answered first, with all that a simulation knows.

It knows the work of the request and of all others, those in transit from every balancer included, whether a connection
is open, and all faults, future ones too: slowness, pauses, hangs and their ends, crashes. A request that would fail
costs the client's timeout. It decides for each request alone and once, among the endpoints that the router offers. So
it is a reference that no policy can reach by better estimates, but not the optimum of all schedules.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapreplace
from itertools import pairwise
from math import ceil, inf
from operator import itemgetter
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from experiments.generator.demand import MASK
from experiments.scenario.event_kinds import HEALTHY, FaultState
from experiments.simulator.worker import SimulatedWorker
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts

if TYPE_CHECKING:
    from experiments.simulator.fleet import SimulatedFleet

FAILURE_COST_S: Final = 1e6
"""Cost in seconds of a request that fails, where clients have no timeout."""


class Spell(NamedTuple):
    """A worker is in this fault state from `begins` to `ends`."""

    begins: float
    ends: float
    fault_state: FaultState


class Future:
    """Fault states of one worker, past and future, in order; `began_at` is when the load began."""

    def __init__(self, steps: list[tuple[float, FaultState]], began_at: float) -> None:
        changes = [(-inf, HEALTHY), *((began_at + at, state) for at, state in steps), (inf, HEALTHY)]
        self.spells = [Spell(at, until, state) for (at, state), (until, _) in pairwise(changes) if at < until]
        self.least_slow = min(spell.fault_state.slow for spell in self.spells)
        self.is_uneventful = len(self.spells) == 1
        self._began_at = began_at

    def at(self, instant: float) -> Spell:
        """The spell of an instant."""
        return next(spell for spell in self.spells if instant < spell.ends)

    def admitted(self, at: float) -> Spell | None:
        """The spell in which a request that arrives `at` is admitted: that after a hang; None if it never is."""
        spells = (spell for spell in self.spells if at < spell.ends)
        return next((spell for spell in spells if spell.fault_state.hang < 1.0), None)

    def crashes(self, begins: float, ends: float) -> bool:
        """Whether the process is killed within these instants."""
        return any(
            begins < spell.begins <= ends and spell.fault_state.is_gone and not spell.fault_state.is_graceful
            for spell in self.spells
        )

    def pauses(self, now: float) -> Iterator[tuple[float, float]]:
        """Begin and length of the pauses that begin after `now`, in order."""
        for spell in self.spells:
            pause = spell.fault_state.pause
            if pause is None or spell.ends <= now:
                continue
            at = self._began_at + pause.since
            if pause.every:
                at += max(0.0, ceil((now - at) / pause.every)) * pause.every
            while now < at < spell.ends:
                yield at, pause.length
                at = at + pause.every if pause.every else inf


class Clairvoyant:
    """The worker that answers this request first, given its work, all queues and all faults, future ones included."""

    def __init__(self, fleet: SimulatedFleet, rng: Random) -> None:
        self._fleet = fleet
        self._client = fleet.client
        self._workers = fleet.workers
        self._lost = min(fleet.client.timeout, FAILURE_COST_S)
        self._began_at = -1.0
        self._futures: dict[str, Future] = {}
        for worker in fleet.workers.values():
            worker.expect()

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the worker with the earliest answer. O(endpoints · (slots + requests in transit)) at worst."""
        if self._began_at != self._fleet.began_at:
            self._look_ahead()
        client = self._client
        place = client.routed & MASK
        best, least = available[0], inf
        for state in available:
            worker, future = self._workers[state.id], self._futures[state.id]
            seconds = client.drawn[worker.profile][place] / worker.model.speed
            lag = connect_seconds(state, worker) + worker.half
            if lag + worker.half + seconds * future.least_slow < least:
                price = self._price(worker, future, now, lag, seconds)
                if price < least:
                    best, least = state, price
        return best

    def _look_ahead(self) -> None:
        """Derive the future of each worker when the load begins; before, none has faults."""
        self._began_at = self._fleet.began_at
        for number, worker in enumerate(self._workers.values()):
            steps = [(step.at, step.fault_state) for step in self._fleet.model.steps if step.worker == number]
            self._futures[worker.id] = Future(steps, self._began_at)

    def _price(
        self, worker: SimulatedWorker, future: Future, now: float, lag: float, seconds: float
    ) -> float:
        """Seconds until the answer, or what a failure costs."""
        at = now + lag
        if future.is_uneventful:
            return self._end(worker, at, seconds) + worker.half - now
        spell = future.admitted(at)
        if spell is None or spell.fault_state.is_gone or future.at(now + lag).fault_state.is_gone:
            return self._lost
        at = max(at, spell.begins)
        fault_state = spell.fault_state
        ends = self._end(worker, at, seconds * fault_state.slow)
        for begins, length in future.pauses(now):
            if begins >= ends:
                break
            ends += max(0.0, min(length, begins + length - at))
        if future.crashes(at, ends):
            return self._lost
        return ends + worker.half - now + fault_state.lost_share * self._lost

    def _end(self, worker: SimulatedWorker, at: float, seconds: float) -> float:
        """End of service of a request that arrives `at`, after those present and those that arrive before."""
        coming = worker.in_transit()
        if worker.shared is not None:
            sharing = len(worker.shared) + len(coming) + 1
            return at + seconds * max(1.0, sharing / worker.model.slots)
        free = worker.slots.free_slots()
        if coming:
            for arrives, drawn in sorted(coming, key=itemgetter(0)):
                if arrives > at:
                    break
                heapreplace(free, max(free[0], arrives) + drawn)
        return max(at, free[0]) + seconds


def connect_seconds(state: EndpointState, worker: SimulatedWorker) -> float:
    """Seconds until a connection is open."""
    connections = state.connections
    return 0.0 if connections is None or connections.has_idle else worker.rtt * worker.setup_rtts
