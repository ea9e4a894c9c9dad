"""Simulated worker: arrivals, service, and active faults.

Behaves as an emulated worker. Faults are evaluated when a request arrives, by the same `FaultEffects`. A pause stops
all requests present, and admits none.
"""

from __future__ import annotations

from functools import partial
from math import exp
from random import Random
from typing import TYPE_CHECKING

from experiments.generator.demand import MASK
from experiments.scenario.event_kinds import HEALTHY
from experiments.simulator.attempt import RETURNING, SERVED, SimulatedAttempt
from experiments.simulator.clock import Call, EventQueue
from experiments.simulator.model import WorkerModel
from experiments.simulator.station import Shared
from policies.facts import OutcomeKind, ReportedLoad
from workers.faults import FaultEffects, Treatment
from workers.service import AVERAGED_OVER
from workers.slots import NO_ROOM, Slots

if TYPE_CHECKING:
    from experiments.simulator.worker_connections import WorkerConnections


class SimulatedWorker:
    """One worker.

    `half` is the one-way delay of its link in seconds; `pace` multiplies work while it is not `is_unwell`. `arrived`,
    `done`, `refused` and `broken` count requests. `worker_connections` are those of the balancers. `is_tracked`: the
    requests `present` are known at every instant, at one more event each; needed for pauses, crashes and load reports.
    """

    def __init__(
        self,
        model: WorkerModel,
        number: int,
        profile: int,
        agenda: EventQueue,
        seed: int,
        *,
        reports: bool,
        is_tracked: bool,
        staleness: float,
    ) -> None:
        self.id = model.id
        self.number = number
        self.model = model
        self.rtt = model.rtt
        self.half = model.rtt / 2
        self.setup_rtts = model.setup_rtts
        self.idle_timeout = model.idle_timeout
        self.is_emulated = model.is_emulated
        self.profile = profile
        self.agenda = agenda
        self.effects = FaultEffects(HEALTHY, model.speed)
        self.pace = self.effects.pace
        self.is_down = self.is_unhealthy = self.is_unwell = False
        self.is_tracked = is_tracked
        self.paused_since = self.paused_until = 0.0
        self.present: dict[SimulatedAttempt, None] = {}
        self.hung: dict[SimulatedAttempt, None] = {}
        self._held: list[SimulatedAttempt] = []  # arrived in a pause
        self.worker_connections: list[WorkerConnections] = []
        self._expected: dict[SimulatedAttempt, float] | None = None
        self.arrived = self.done = self.refused = self.broken = 0
        self.slots = Slots(model.slots, model.queue)
        self.shared: Shared | None = (
            Shared(model.slots, model.queue) if model.discipline == "shared" else None
        )
        self._by_number: dict[int, SimulatedAttempt] = {}
        self._version = 0
        self._rng = Random(f"{seed}:{model.id}:faults")
        self._reports = reports
        self.fault_state = HEALTHY
        self._staleness = staleness
        self._snapshot: ReportedLoad | None = None
        self._snapshot_at = self._last_service = 0.0
        self._utilization = self._told_at = self._told_busy = 0.0

    # --- a request

    def arrive(self, attempt: SimulatedAttempt, now: float) -> None:
        if now < self.paused_until and not self.is_down:
            self._held.append(attempt)
            self.sent(attempt, now)  # as in transit, to oracles
            return
        self.arrived += 1
        if self._expected is not None:
            self._expected.pop(attempt, None)
        work = attempt.demand[self.profile][attempt.number & MASK]
        seconds = work * self.pace
        if self.is_unwell:
            if self._apply_faults(attempt, now):
                return
            seconds = self.effects.service_time(work, self._rng)
        if self._reports:
            attempt.work = seconds
        if self.shared is not None:
            self._share(attempt, seconds, now)
            return
        finish_at = self.slots.admit(now, seconds)
        if finish_at == NO_ROOM:
            self._refuse(attempt, 503, now)
            return
        if self.is_tracked:
            self.present[attempt] = None
            attempt.stage = SERVED
        else:
            self.done += 1
            attempt.stage = RETURNING
            finish_at += self.half
        attempt.due_at = finish_at
        self.agenda.add(finish_at, attempt)

    def served(self, attempt: SimulatedAttempt, now: float) -> None:
        """Complete the service of a request and send the answer, with a load report where enabled."""
        self.done += 1
        self.present.pop(attempt, None)
        if self._reports:
            self._last_service = attempt.work
            attempt.report = self.report(now)
        self._answer(attempt, now)

    def _answer(self, attempt: SimulatedAttempt, now: float) -> None:
        attempt.stage = RETURNING
        attempt.due_at = at = now + self.half
        self.agenda.add(at, attempt)

    def _refuse(self, attempt: SimulatedAttempt, status: int, now: float) -> None:
        self.refused += 1
        attempt.kind = OutcomeKind.ERROR_STATUS
        attempt.status = status
        self._answer(attempt, now)

    def _break(self, attempt: SimulatedAttempt, now: float) -> None:
        self.broken += 1
        attempt.kind = OutcomeKind.RESET
        attempt.status = 0
        self._answer(attempt, now)

    # --- processor sharing

    def _share(self, attempt: SimulatedAttempt, seconds: float, now: float) -> None:
        shared = self.shared
        assert shared is not None
        number = shared.admitted
        if not shared.enter(now, seconds, number):
            self._refuse(attempt, 503, now)
            return
        self._by_number[number] = attempt
        self.present[attempt] = None
        self._expect()

    def _expect(self) -> None:
        """Schedule the next departure again after an arrival, a departure or a pause."""
        shared = self.shared
        assert shared is not None
        self._version += 1
        if self._by_number:
            self.agenda.add(shared.next_at(), Call(partial(self._departed, self._version)))

    def _departed(self, version: int, now: float) -> None:
        """Handle a departure event unless a later `version` has replaced it."""
        shared = self.shared
        if version != self._version or shared is None:
            return
        attempt = self._by_number.pop(shared.leave(now))
        self.served(attempt, now)
        self._expect()

    # --- load report

    def report(self, now: float) -> ReportedLoad:
        """Load report, up to `staleness` seconds old."""
        report = self._snapshot
        if report is None or now - self._snapshot_at >= self._staleness:
            present = len(self.present) + len(self._held)
            report = ReportedLoad(present, self._last_service, self.utilization(now))
            self._snapshot, self._snapshot_at = report, now
        return report

    def utilization(self, now: float) -> float:
        """Utilisation of the slots, exponentially averaged over about the last second."""
        elapsed = now - self._told_at
        if elapsed > 0:
            busy = self.slots.busy_seconds(now) if self.shared is None else self.shared.busy_seconds(now)
            share = (busy - self._told_busy) / (elapsed * self.model.slots)
            self._utilization += (1 - exp(-elapsed / AVERAGED_OVER)) * (share - self._utilization)
            self._told_at, self._told_busy = now, busy
        return self._utilization

    # --- what only oracles know

    def expect(self) -> None:
        """Keep account of the requests in transit from now on."""
        if self._expected is None:
            self._expected = {}

    def sent(self, attempt: SimulatedAttempt, arrives: float) -> None:
        """Note that a request is on the way, where an account is kept."""
        if self._expected is not None:
            self._expected[attempt] = arrives

    def in_transit(self) -> list[tuple[float, float]]:
        """When each request in transit arrives, and its seconds of service without a fault. Requires `expect`."""
        expected = self._expected
        assert expected is not None
        for attempt in [attempt for attempt in expected if attempt.is_over]:
            del expected[attempt]
        profile, speed = self.profile, self.model.speed
        return [(at, one.demand[profile][one.number & MASK] / speed) for one, at in expected.items()]

    def seconds_for(self, work: float) -> float:
        """Expected seconds of service of a request of so much work that arrives now."""
        return self.effects.mean(work) if self.is_unwell else work * self.pace

    def remaining(self, now: float) -> float:
        """Seconds of work ahead of a request that arrives now; unknown to real balancers."""
        return self.slots.remaining(now) if self.shared is None else self.shared.remaining(now)

    def error(self) -> float:
        """Relative error of the station's time accounting."""
        return self.slots.error() if self.shared is None else self.shared.error()

    # --- faults

    def _apply_faults(self, attempt: SimulatedAttempt, now: float) -> bool:
        """Apply the active faults to an arriving request; returns whether one applies."""
        treatment = Treatment.RESET if self.is_down else self.effects.treatment(self._rng)
        if treatment is Treatment.RESET:
            self._break(attempt, now)
        elif treatment is Treatment.HANG:
            self.hung[attempt] = None
            self.arrived -= 1  # it counts as an arrival when it is evaluated again
        elif treatment is Treatment.FAIL:
            self._refuse(attempt, 500, now)
        else:
            return False
        return True

    def judge(self) -> None:
        """Recompute the derived fields after a change of faults."""
        self.effects = FaultEffects(self.fault_state, self.model.speed)
        self.is_unwell = self.fault_state != HEALTHY

    def reevaluate_hung(self, now: float) -> None:
        """Evaluate hung requests again under the current faults."""
        hung, self.hung = self.hung, {}
        for attempt in hung:
            if not attempt.is_over:
                self.arrive(attempt, now)

    def _resume(self, now: float) -> None:
        """Admit the requests that arrived in a pause, unless they have ended."""
        held, self._held = self._held, []
        for attempt in held:
            if not attempt.is_over:
                self.arrive(attempt, now)

    def link(self, rtt: float) -> None:
        """Change the round trip, in seconds."""
        self.rtt, self.half = rtt, rtt / 2
        for connections in self.worker_connections:
            connections.relink()

    def pause(self, now: float, until: float) -> None:
        """Suspend service until `until`. Requires `is_tracked`, except for processor sharing."""
        self.paused_since, self.paused_until = now, until
        self.agenda.add(until, Call(self._resume))
        if self.shared is not None:
            self.shared.pause(now, until)
            self._expect()
            return
        self.slots.pause(now, until)
        for attempt in self.present:
            attempt.due_at += until - now

    def crash(self, now: float) -> None:
        """Crash: lose all requests and connections. Requires `is_tracked`."""
        self.is_down = True
        self.arrived += len(self.hung) + len(self._held)
        for attempt in [*self.present, *self.hung, *self._held]:
            self._break(attempt, now)
        self.present, self.hung, self._held = {}, {}, []
        if self.shared is None:
            self.slots.clear(now)
        else:
            self.shared.clear(now)
            self._by_number.clear()
            self._version += 1
        for connections in self.worker_connections:
            connections.idle.clear()

    def leave(self) -> None:
        """Shut down gracefully: finish the requests present and accept no new connections."""
        self.is_down = True
        for connections in self.worker_connections:
            connections.idle.clear()
