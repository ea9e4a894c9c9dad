"""The six workers of a storm and the injection of faults into them.

A worker keeps its port and its record file for the whole run, across restarts. Only processes started here get signals,
by process id; a stopped worker is continued before it is ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.storm.plan import KILLED, STOPPED, WORKERS, Episode
from experiments import cpu_time, processes
from experiments.ports import lasting_ports
from experiments.processes import Child, program
from experiments.run.fleet import all_ready

CONTROL_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class Executions:
    """What the workers recorded: executions of each POST, refused requests and damaged bodies, by request id."""

    executed: Counter[bytes] = field(default_factory=Counter)
    refused: Counter[bytes] = field(default_factory=Counter)
    damaged: Counter[bytes] = field(default_factory=Counter)

    @classmethod
    def read(cls, records: Sequence[Path]) -> Self:
        found = cls()
        by_mark = {b"E": found.executed, b"R": found.refused, b"D": found.damaged}
        for line in (line for record in records for line in record.read_bytes().splitlines()):
            mark, _, identity = line.partition(b" ")
            by_mark[mark][identity] += 1
        return found


class WorkerGroup:
    """The workers' processes: `async with Crew(folder, core) as crew` starts all six, in the order of `WORKERS`."""

    def __init__(self, folder: Path, core: int, looks_well: bool = False) -> None:
        self.ports = tuple(lasting_ports(len(WORKERS)))
        self._folder, self._core = folder, core
        self._unseen = "/unseen" if looks_well else ""
        self._children: dict[str, Child] = {}
        self._ended: list[Child] = []
        self._spare: dict[tuple[str, float], Child] = {}

    async def __aenter__(self) -> Self:
        try:
            for name in WORKERS:
                self._children[name] = await self._start(name, 0.0)
            await all_ready(list(self._children.values()))
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

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

    async def restart(self, name: str) -> None:
        """Restart one worker gracefully: SIGTERM, wait for its exit, start it again."""
        child = self._children[name]
        os.kill(child.pid, signal.SIGTERM)
        await child.gone()
        self._ended.append(child)
        self._children[name] = await self._start(name, 0.0)
        await self._children[name].ready()

    def executions(self) -> Executions:
        """Read the records of all workers."""
        return Executions.read([path for name in WORKERS if (path := self._record(name)).exists()])

    async def _kill(self, name: str, back_at: float) -> None:
        child = self._children[name]
        os.kill(child.pid, signal.SIGKILL)
        self._ended.append(child)
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
        await told(port, f"/-/{fault_state}{self._unseen}")
        await asyncio.sleep(max(0.0, back_at - time.monotonic()))
        await told(port, "/-/well")

    async def _start(self, name: str, at: float) -> Child:
        port = self.ports[WORKERS.index(name)]
        words = [str(port), name, str(self._record(name)), str(at)]
        with cpu_time.pinned_to(self._core):
            return await processes.start(name, [*program("benchmarks.storm.worker"), *words])

    def _record(self, name: str) -> Path:
        return self._folder / f"{name}.record"

    async def _stop(self) -> None:
        """Kill all workers at once; no request that counts is in flight any more."""
        everybody = [*self._children.values(), *self._spare.values(), *self._ended]
        for child in everybody:
            if child.is_running:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
        # Signalling a process that has just ended would take its exit status from the caller that waits for it.
        await asyncio.gather(*(child.gone() for child in everybody))
        await asyncio.gather(*(child.stop() for child in everybody))


async def told(port: int, path: str) -> None:
    """Send a control request to a worker and wait for its response. Raises `OSError` or `TimeoutError`."""
    async with asyncio.timeout(CONTROL_WITHIN):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n".encode())
            await reader.read()
        finally:
            writer.close()
