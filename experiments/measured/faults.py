"""Apply the events of a scenario to live workers during the load.

`timeline.py` decides the fault state of each worker over time; this module only applies it, through the workers'
`/-/faults`, the balancer's admin interface, and signals. A failed or late step makes the run invalid.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from experiments.errors import ExperimentError
from experiments.measured.fleet import Fleet
from experiments.platform.control import request_balancer, request_worker
from experiments.scenario.event_kinds import HEALTHY, FaultState
from experiments.scenario.timeline import Step
from workers.faults import Faults

LISTENS_WITHIN = 2.0
"""Seconds within which a spare worker must listen after it is activated."""

MOST_LATE = 0.25
"""Seconds after its instant within which a step must be done. The end of a process that drains has no such bound."""

SENT = {
    field.name: name
    for field in fields(FaultState)
    if (name := field.name.removeprefix("is_")) in Faults.model_fields and name != "pause"
}
"""Field of a fault state -> that of `Faults`, where a value is sent as it is."""


class LiveEvents:
    """Applies a fleet's timeline, each worker's steps in order. `failed_steps` describes those not done in time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._tasks: list[asyncio.Task[None]] = []
        self.failed_steps: list[str] = []

    def begin(self, started_at: float) -> None:
        """Start applying events; the load starts at `started_at`, in seconds of `time.monotonic()`."""
        for worker in range(len(self._fleet.places)):
            steps = [step for step in self._fleet.steps if step.worker == worker]
            self._tasks.append(asyncio.ensure_future(self._play(worker, steps, started_at)))

    async def end(self) -> tuple[str, ...]:
        """Stop applying events and return descriptions of the steps that failed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return tuple(self.failed_steps)

    async def _play(self, worker: int, steps: Sequence[Step], started_at: float) -> None:
        before = self._fleet.first_fault_state(worker)
        for step in steps:
            await asyncio.sleep(max(0.0, started_at + step.at - time.monotonic()))
            try:
                await self._change(worker, before, step.fault_state, step.at)
            except (ExperimentError, OSError) as error:
                self.failed_steps.append(f"event at {step.at:g} s failed: {error}")
            late, drains = time.monotonic() - started_at - step.at, step.fault_state.is_graceful
            if late > MOST_LATE and not (drains and step.fault_state.is_gone):
                self.failed_steps.append(
                    f"the change at {step.at:g} s was made {late:.2f} s late, {MOST_LATE:g} s allowed"
                )
            before = step.fault_state

    async def _change(self, worker: int, before: FaultState, after: FaultState, at: float) -> None:
        """Change a worker's fault state: drain before its process ends, and listen before it gets requests."""
        if after.is_draining and not before.is_draining:
            await self._order("PATCH", worker, {"state": "drain"})
        if after.is_gone and not before.is_gone:
            await self._fleet.end(worker, gently=after.is_graceful)
        if before.is_gone and not after.is_gone:
            self._fleet.bring_back(worker)
            await listening(self._fleet.workers[worker].address)
        known = {} if before.is_gone else faults_of(before)
        if not after.is_gone and not same(faults_of(after, at), known):
            await request_worker(self._fleet.workers[worker].address, faults_of(after, at))
        if before.is_draining and not after.is_draining:
            await self._order("PATCH", worker, {"state": "ready"})
        if before.is_absent and not after.is_absent:
            endpoint = self._fleet.endpoint(worker)
            await request_balancer(self._fleet.balancer.address, "POST", "/-/endpoints", endpoint)
        if after.is_absent and not before.is_absent:
            await self._order("DELETE", worker)

    async def _order(self, method: str, worker: int, body: dict[str, Any] | None = None) -> None:
        path = f"/-/endpoints/{self._fleet.places[worker].worker}"
        await request_balancer(self._fleet.balancer.address, method, path, body)


def faults_of(fault_state: FaultState, now: float = 0.0) -> dict[str, Any]:
    """Body for a worker's `/-/faults`, `now` seconds into the run; empty when the worker is healthy."""
    changed = (name for name in SENT if getattr(fault_state, name) != getattr(HEALTHY, name))
    faults = {SENT[name]: getattr(fault_state, name) for name in changed}
    if fault_state.pause is not None:
        faults |= {"pause": fault_state.pause.length, "every": fault_state.pause.every}
        faults["after"] = max(0.0, fault_state.pause.since - now)
    return faults


def same(these: dict[str, Any], those: dict[str, Any]) -> bool:
    """Whether two fault bodies are equivalent for a worker; a pause that has begun keeps its phase."""
    return {**these, "after": 0.0} == {**those, "after": 0.0}


async def listening(address: tuple[str, int]) -> None:
    """Wait until `address` accepts connections. Raises `OSError` after `LISTENS_WITHIN` seconds."""
    give_up_at = time.monotonic() + LISTENS_WITHIN
    while True:
        try:
            _, writer = await asyncio.open_connection(*address)
        except ConnectionRefusedError:
            if time.monotonic() > give_up_at:
                raise
            await asyncio.sleep(0.005)
        else:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
