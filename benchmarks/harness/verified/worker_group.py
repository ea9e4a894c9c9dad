"""The six workers of a verified load: processes that keep their port and record file across restarts.

Only processes started here get signals, by process id.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.harness.verified.messages import WORKERS
from experiments.measured.fleet import all_ready
from experiments.platform import cpu_time, processes
from experiments.platform.ports import free_ports
from experiments.platform.processes import Child, program


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
    """Processes of the workers: `async with WorkerGroup(folder, core)` starts all six, in the order of `WORKERS`."""

    def __init__(self, folder: Path, core: int) -> None:
        self.ports = tuple(free_ports(len(WORKERS)))
        self._folder, self._core = folder, core
        self._children: dict[str, Child] = {}
        self._started: list[Child] = []

    async def __aenter__(self) -> Self:
        try:
            for name in WORKERS:
                self._children[name] = await self._start(name, 0.0)
            await all_ready(list(self._children.values()))
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def restart(self, name: str) -> None:
        """Restart one worker gracefully: SIGTERM, wait for its exit, start it again."""
        child = self._children[name]
        os.kill(child.pid, signal.SIGTERM)
        await child.gone()
        self._children[name] = await self._start(name, 0.0)
        await self._children[name].ready()

    def executions(self) -> Executions:
        return Executions.read([path for name in WORKERS if (path := self._record(name)).exists()])

    async def _start(self, name: str, at: float) -> Child:
        port = self.ports[WORKERS.index(name)]
        words = [str(port), name, str(self._record(name)), str(at)]
        with cpu_time.pinned_to(self._core):
            child = await processes.start(name, [*program("benchmarks.harness.verified.worker"), *words])
        self._started.append(child)
        return child

    def _record(self, name: str) -> Path:
        return self._folder / f"{name}.record"

    async def _stop(self) -> None:
        """Kill all workers at once; no request that counts is in flight any more."""
        await asyncio.gather(*(child.kill() for child in self._started))
        await asyncio.gather(*(child.stop() for child in self._started))
