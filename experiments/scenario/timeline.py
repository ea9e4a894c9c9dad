"""Fault state of each worker over time: the events of a scenario, combined.

Pure: no I/O, no clock. Only this module defines how events combine, so live and simulated runs cannot disagree.
Instants are seconds from the start of the load. The time scale is applied to all that is combined, in `timeline`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from experiments.scenario.event_kinds import HEALTHY, KINDS, FaultState, Pause
from experiments.scenario.events import Event
from experiments.scenario.scenario import Scenario
from experiments.scenario.streams import stream


@dataclass(frozen=True, slots=True)
class Step:
    """From `at` on, worker number `worker` (as in `places_of`) is in this fault state, in measured seconds."""

    at: float
    worker: int
    fault_state: FaultState


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """An active fault: one event on one worker, from `begin` to `end`, which may be infinite."""

    begin: float
    end: float
    event: Event
    since: float = 0.0


def timeline(scenario: Scenario, seed: int) -> tuple[Step, ...]:
    """Changes of fault state of all workers, ascending in time; `seed` fixes the phases of repeated pauses."""
    scale = scenario.time_scale
    steps = [
        Step(at * scale, worker, fault_state.scaled(scale))
        for worker, active_faults in enumerate(active_faults_of(scenario, seed))
        for at, fault_state in changes_of(active_faults)
    ]
    return tuple(sorted(steps, key=lambda step: (step.at, step.worker)))


def active_faults_of(scenario: Scenario, seed: int) -> list[list[ActiveFault]]:
    """Active faults of every worker, in the order of the scenario's events."""
    rng = stream("faults", seed)
    workers = list(zip(scenario.workers, scenario.numbered_workers, strict=True))
    found = [list[ActiveFault]() for _ in workers]
    for event in scenario.events:
        struck = [n for n, (worker, (region, _)) in enumerate(workers) if event.targets(worker, region.name)]
        for turn, number in enumerate(struck):
            begin = event.at + turn * event.stagger
            phase = float(rng.uniform(0.0, event.every)) if event.every else 0.0
            end = begin + (math.inf if event.lasts is None else event.lasts)
            if event.kind == "pause" and not event.every:
                end = begin + event.amount
            found[number].append(ActiveFault(begin, end, event, begin + phase))
    return found


def changes_of(active_faults: Sequence[ActiveFault]) -> Iterator[tuple[float, FaultState]]:
    """Changes of one worker's fault state; none at 0 if it is healthy then."""
    before = HEALTHY
    ends = {edge for active_fault in active_faults for edge in edges(active_fault) if math.isfinite(edge)}
    for instant in sorted({0.0, *ends}):
        fault_state = fault_state_at(instant, active_faults)
        if fault_state != before:
            yield instant, fault_state
        before = fault_state


def edges(active_fault: ActiveFault) -> tuple[float, ...]:
    """Instants at which the fault changes the state."""
    if active_fault.event.kind == "restart":
        return active_fault.begin, active_fault.begin + active_fault.event.amount, active_fault.end
    return active_fault.begin, active_fault.end


def fault_state_at(instant: float, active_faults: Sequence[ActiveFault]) -> FaultState:
    """Fault state at an instant: all active faults combined."""
    fault_state = HEALTHY
    for active_fault in active_faults:
        is_on = active_fault.begin <= instant < active_fault.end
        if active_fault.event.kind == "add":
            fault_state = fault_state if is_on else replace(fault_state, is_absent=True)
        elif is_on:
            fault_state = with_fault(fault_state, active_fault, instant)
    return fault_state


def with_fault(fault_state: FaultState, active_fault: ActiveFault, instant: float) -> FaultState:
    """Add one fault to those before it in the scenario."""
    event, amount = active_fault.event, active_fault.event.amount
    changes = {
        name: change(getattr(fault_state, name), amount) if callable(change) else change
        for name, change in KINDS[event.kind].changes.items()
    }
    if event.kind == "pause":
        changes["pause"] = Pause(amount, event.every or 0.0, active_fault.since)
    if event.kind == "restart":
        changes["is_gone"] = fault_state.is_gone or instant >= active_fault.begin + amount
    return replace(fault_state, **changes)
