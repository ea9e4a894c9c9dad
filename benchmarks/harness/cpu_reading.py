"""CPU accounting of a run: the difference of two readings, before and after the load."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.platform import cpu_time
from experiments.platform.cpu_time import Cpu
from experiments.platform.processes import Child


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Accounts at one instant, or, from `since`, over the time between two.

    `proxy` is of the proxy's process tree. In seconds, `rest` is of the worker and of ended load generators; `cores` is
    how long each core was in use by all processes.
    """

    at: float
    proxy: Cpu
    rest: float
    cores: tuple[float, ...]

    @classmethod
    def now(cls, proxy: Child | None, worker: Child | None = None, cores: Sequence[int] = ()) -> CpuReading:
        """Read the accounts. Raises `OSError` if a process is gone."""
        spent = cpu_time.cpu_of(proxy.pid) if proxy is not None else Cpu(0.0, 0, 0)
        rest = cpu_time.cpu_of(worker.pid).total if worker is not None else 0.0
        busy = tuple(map(cpu_time.busy_seconds, cores))
        return cls(time.monotonic(), spent, rest + cpu_time.cpu_of_ended_children(), busy)

    def since(self, before: CpuReading) -> CpuReading:
        """Seconds and CPU time between `before` and this reading."""
        cores = tuple(now - then for now, then in zip(self.cores, before.cores, strict=True))
        return CpuReading(self.at - before.at, self.proxy - before.proxy, self.rest - before.rest, cores)

    @property
    def taken(self) -> float:
        """Share of the cores used by processes that are no part of the measurement, 0 to 1."""
        others = sum(self.cores) - self.proxy.total - self.rest
        return min(1.0, max(0.0, others / self.at / len(self.cores)))
