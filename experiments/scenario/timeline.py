"""Fault state of each worker over time: the events of a scenario, combined.

Pure: no I/O, no clock. Only this module defines how events combine, so live and simulated runs cannot disagree.
Instants and durations are measured seconds from the start of the load, with the time scale applied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from experiments.scenario.events import Event
from experiments.scenario.scenario import Scenario
from experiments.scenario.streams import stream


@dataclass(frozen=True, slots=True)
class Pause:
    """A GC-like pause of `length` seconds at `since`, repeated every `every` seconds; 0: only once."""

    length: float
    every: float
    since: float


@dataclass(frozen=True, slots=True)
class FaultState:
    """Fault state of one worker; the default is healthy."""

    slow: float = 1.0
    fail: float = 0.0
    hang: float = 0.0
    reset: float = 0.0
    pause: Pause | None = None
    is_unhealthy: bool = False
    is_gone: bool = False
    """Whether the worker has no process."""

    is_graceful: bool = False
    """Whether its process ends by SIGTERM after draining, and not by SIGKILL."""

    is_draining: bool = False
    is_absent: bool = False
    """Whether the balancer does not have it as an endpoint."""

    rtt: float | None = None
    """Round trip in seconds; None: the region's."""


WELL = FaultState()


@dataclass(frozen=True, slots=True)
class Step:
    """From `at` on, worker number `worker` (as in `places_of`) is in this fault state."""

    at: float
    worker: int
    trouble: FaultState


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """An active fault: one event on one worker, from `begin` to `end`, which may be infinite."""

    begin: float
    end: float
    event: Event
    since: float = 0.0


def timeline(scenario: Scenario, seed: int) -> tuple[Step, ...]:
    """Changes of fault state of all workers, ascending in time; the block's `seed` fixes the phases of periodic
    pauses.
    """
    steps = [
        step
        for worker, spells in enumerate(active_faults_of(scenario, seed))
        for step in steps_of(worker, spells)
    ]
    return tuple(sorted(steps, key=lambda step: (step.at, step.worker)))


def pauses(steps: Sequence[Step], until: float) -> list[tuple[float, int, float]]:
    """(instant, worker, length) of every single pause that begins before `until`, ascending."""
    found = []
    for step, end in ended(steps, until):
        pause = step.trouble.pause
        while pause is not None and pause.since < end:
            if pause.since >= step.at:
                found.append((pause.since, step.worker, pause.length))
            if not pause.every:
                break
            pause = replace(pause, since=pause.since + pause.every)
    return sorted(found)


def ended(steps: Sequence[Step], until: float) -> Iterator[tuple[Step, float]]:
    """Yield each step with the instant at which the next step of the same worker replaces it, last step first."""
    following: dict[int, float] = {}
    for step in reversed(steps):
        yield step, min(following.get(step.worker, math.inf), until)
        following[step.worker] = step.at


def active_faults_of(scenario: Scenario, seed: int) -> list[list[ActiveFault]]:
    """Active faults of every worker, in the order of the scenario's events."""
    rng, scale = stream("faults", seed), scenario.time_scale
    crew = list(zip(scenario.workers, scenario.region_of_each, strict=True))
    found = [list[ActiveFault]() for _ in crew]
    for event in scenario.events:
        struck = [number for number, (worker, region) in enumerate(crew) if event.strikes(worker, region)]
        for turn, number in enumerate(struck):
            begin = event.at + turn * event.stagger
            phase = float(rng.uniform(0.0, event.every)) if event.every else 0.0
            end = begin + (math.inf if event.lasts is None else event.lasts)
            if event.kind == "pause" and not event.every:
                end = begin + event.amount
            found[number].append(ActiveFault(begin * scale, end * scale, event, (begin + phase) * scale))
    return [[scaled(spell, scale) for spell in spells] for spells in found]


def scaled(spell: ActiveFault, scale: float) -> ActiveFault:
    """The fault with the durations in its event's value in measured seconds too."""
    event = spell.event
    if scale == 1 or event.kind not in ("pause", "rtt", "restart"):
        return spell
    changes = {"value": event.amount * scale, "every": event.every and event.every * scale}
    return replace(spell, event=event.model_copy(update=changes))


def steps_of(worker: int, spells: Sequence[ActiveFault]) -> Iterator[Step]:
    """Changes of one worker's fault state; none at 0 if it is healthy then."""
    before = WELL
    for instant in sorted({0.0, *(edge for spell in spells for edge in edges(spell) if math.isfinite(edge))}):
        trouble = fault_state_at(instant, spells)
        if trouble != before:
            yield Step(instant, worker, trouble)
        before = trouble


def edges(spell: ActiveFault) -> tuple[float, ...]:
    """Instants at which the fault changes the state."""
    if spell.event.kind == "restart":
        return spell.begin, spell.begin + spell.event.amount, spell.end
    return spell.begin, spell.end


def fault_state_at(instant: float, spells: Sequence[ActiveFault]) -> FaultState:
    """Fault state at an instant: all active faults combined."""
    trouble = WELL
    for spell in spells:
        is_on = spell.begin <= instant < spell.end
        if spell.event.kind == "add":
            trouble = trouble if is_on else replace(trouble, is_absent=True)
        elif is_on:
            trouble = with_fault(trouble, spell, instant)
    return trouble


def with_fault(trouble: FaultState, spell: ActiveFault, instant: float) -> FaultState:
    """Add one fault: factors multiply, the greatest share counts, the last pause and the last round trip count."""
    event, amount = spell.event, spell.event.amount
    match event.kind:
        case "slow":
            return replace(trouble, slow=trouble.slow * amount)
        case "fail":
            return replace(trouble, fail=max(trouble.fail, amount))
        case "hang":
            return replace(trouble, hang=max(trouble.hang, amount))
        case "reset":
            return replace(trouble, reset=max(trouble.reset, amount))
        case "pause":
            return replace(trouble, pause=Pause(amount, event.every or 0.0, spell.since))
        case "rtt":
            return replace(trouble, rtt=amount)
        case "unhealthy":
            return replace(trouble, is_unhealthy=True)
        case "drain":
            return replace(trouble, is_draining=True)
        case "down":
            return replace(trouble, is_gone=True)
        case "restart":
            is_gone = trouble.is_gone or instant >= spell.begin + amount
            return replace(trouble, is_draining=True, is_graceful=True, is_gone=is_gone)
    raise AssertionError(f"no rule for {event.kind!r}")
