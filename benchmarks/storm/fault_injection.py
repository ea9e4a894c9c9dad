"""Injection of faults into the workers of a storm. A stopped worker is continued before it is ended."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness.serving import status_line
from benchmarks.harness.verified.messages import WORKERS
from benchmarks.harness.verified.worker_group import WorkerGroup
from benchmarks.storm.plan import KILLED, STOPPED, Episode
from experiments.errors import FleetFailedError
from experiments.platform.processes import Child

CONTROL_WITHIN = 5.0


class FaultyWorkers(WorkerGroup):
    """Workers that faults can be injected into; health checks pass on faulty ones if `looks_well`."""

    def __init__(self, folder: Path, core: int, looks_well: bool = False) -> None:
        super().__init__(folder, core)
        self._unseen = "/unseen" if looks_well else ""
        self._spare: dict[tuple[str, float], Child] = {}

    async def start_replacements(self, episodes: Sequence[Episode], zero: float) -> None:
        """Start the replacements of workers that will be killed: starting them under load would disturb it."""
        for episode in episodes:
            if episode.fault == KILLED:
                for name in episode.workers:
                    back_at = zero + episode.until
                    self._spare[name, back_at] = await self._start(name, back_at)

    async def inject(self, episode: Episode, zero: float) -> tuple[float, float]:
        """Inject one fault and wait until it ends; returns its actual start and end, in seconds from `zero`."""
        await asyncio.sleep(max(0.0, zero + episode.at - time.monotonic()))
        began_at = time.monotonic() - zero
        do = {KILLED: self._kill, STOPPED: self._freeze}.get(
            episode.fault, partial(self._set_fault_state, episode.fault)
        )
        await asyncio.gather(*(do(name, zero + episode.until) for name in episode.workers))
        return began_at, time.monotonic() - zero

    async def _kill(self, name: str, back_at: float) -> None:
        child = self._children[name]
        os.kill(child.pid, signal.SIGKILL)
        self._children[name] = self._spare.pop((name, back_at))
        await self._children[name].ready()

    async def _freeze(self, name: str, back_at: float) -> None:
        pid = self._children[name].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(max(0.0, back_at - time.monotonic()))
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _set_fault_state(self, fault_state: str, name: str, back_at: float) -> None:
        port = self.ports[WORKERS.index(name)]
        await send_control(port, f"/-/{fault_state}{self._unseen}")
        await asyncio.sleep(max(0.0, back_at - time.monotonic()))
        await send_control(port, "/-/well")


async def send_control(port: int, path: str) -> None:
    """Send a control request to a worker and wait for its response. Raises `FleetFailedError` without one."""
    if not await status_line(port, path, within=CONTROL_WITHIN):
        raise FleetFailedError(f"a fault could not be injected: no response to {path} on port {port}")
