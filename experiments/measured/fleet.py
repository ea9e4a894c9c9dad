"""The processes of one run: workers and a fresh balancer.

All processes end with the `async with` block, however it is left. The balancer is used as an operator uses it: a
configuration file, a ready line, and HTTP.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from experiments.errors import FleetFailedError
from experiments.generator.arrivals import requests_of
from experiments.inference.prompts import models_of, prompts_of
from experiments.measured.process_config import balancer_config, endpoint_of, engine_argv, worker_argv
from experiments.platform import processes
from experiments.platform.control import balancer_status
from experiments.platform.ports import free_ports
from experiments.platform.processes import Child, program
from experiments.scenario.event_kinds import HEALTHY, FaultState
from experiments.scenario.places import TLS, places_of
from experiments.scenario.scenario import Entry, Scenario
from experiments.scenario.timeline import Step, timeline
from workers.inference.engine import EngineModel


class Fleet:
    """Context manager that starts all processes and waits for the workers; the caller awaits `balancer.ready()`.

    The balancer takes a second to start, in which the workers can be warmed.

    `seed` is the block's: for every entry of the block, workers draw the same demand and the policy the same numbers.
    For every return of a worker during the run, a spare process is started in advance with `--start-down`. It therefore
    returns on time, and no interpreter starts during the measurement.
    """

    def __init__(self, scenario: Scenario, entry: Entry, seed: int) -> None:
        self._scenario, self._entry, self._seed = scenario, entry, seed
        self._folder = tempfile.TemporaryDirectory(prefix="steelyard-")
        self._children: list[Child] = []
        self.workers: list[Child] = []
        """The current process of each worker, or its last one."""

        self._spares: list[list[Child]] = []
        self._let_go: set[Child] = set()
        self._balancer: Child | None = None
        self.places = places_of(scenario)
        self.steps = timeline(scenario, seed)
        self._engines: list[EngineModel] = []
        if scenario.inference is not None:
            prompts = prompts_of(scenario, requests_of(scenario.load_of(entry), seed), seed)
            self._engines = models_of(scenario, prompts)

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    @property
    def balancer(self) -> Child:
        assert self._balancer is not None
        return self._balancer

    def first_fault_state(self, worker: int) -> FaultState:
        """Fault state of a worker before the first step; only `is_absent` can be set."""
        first = next((step for step in self.steps if step.worker == worker and step.at == 0), None)
        return replace(HEALTHY, is_absent=first is not None and first.fault_state.is_absent)

    def to_be_warmed(self) -> list[Child]:
        """Workers to warm up directly: those that are endpoints from the start and speak plain HTTP."""
        regions = [region for region, _ in self._scenario.numbered_workers]
        return [
            child
            for worker, child in enumerate(self.workers)
            if regions[worker].setup_rtts not in TLS and not self.first_fault_state(worker).is_absent
        ]

    def crashed_processes(self) -> tuple[str, ...]:
        """Description of every process that has ended by itself."""
        ended = [child for child in self._children if not child.is_running and child not in self._let_go]
        return tuple(f"{child.name} died{child.tail}" for child in ended)

    def endpoint(self, worker: int) -> dict[str, Any]:
        """Endpoint of a worker as in the balancer's configuration."""
        region, number = self._scenario.numbered_workers[worker]
        return endpoint_of(self._scenario, self.places[worker], region, number, self.workers[worker].address)

    async def end(self, worker: int, gently: bool) -> None:
        """End a worker's process with SIGTERM (`gently`) or SIGKILL."""
        child = self.workers[worker]
        self._let_go.add(child)
        await (child.stop() if gently else child.kill())

    def bring_back(self, worker: int) -> None:
        """Replace the worker's process by a spare on the same port."""
        self.workers[worker] = self._spares[worker].pop(0)
        self.workers[worker].start_listening()

    async def status(self) -> dict[str, Any]:
        """Status document of the balancer, or `{"error": …}` when it cannot be read."""
        try:
            return await balancer_status(self.balancer.address)
        except FleetFailedError as error:
            return {"error": f"no status: {error}"}

    async def _start(self) -> None:
        returns = returns_of(self.steps, len(self.places))
        lasting = free_ports(sum(count > 0 for count in returns))
        ports = [next(lasting) if count else 0 for count in returns]
        self.workers = [await self._start_worker(worker, port) for worker, port in enumerate(ports)]
        self._spares = [
            [await self._start_worker(worker, ports[worker], "--start-down") for _ in range(count)]
            for worker, count in enumerate(returns)
        ]
        await all_ready(self._children)
        config = Path(self._folder.name) / "balancer.toml"
        present = [n for n in range(len(self.places)) if not self.first_fault_state(n).is_absent]
        endpoints = [self.endpoint(worker) for worker in present]
        text = balancer_config(self._scenario, self._entry, self._seed, endpoints)
        await asyncio.to_thread(config.write_text, text, "utf-8")
        argv = [*program("balancer"), "serve", "--config", str(config)]
        self._balancer = await processes.start("balancer", argv)
        self._children.append(self._balancer)

    async def _start_worker(self, worker: int, port: int, *flags: str) -> Child:
        region, number = self._scenario.numbered_workers[worker]
        if self._engines:
            argv = engine_argv(self._engines[worker], region, number, self._seed + worker, port)
        else:
            argv = worker_argv(self._scenario, region, number, self._seed + worker, port)
        self._children.append(await processes.start(self.places[worker].worker, [*argv, *flags]))
        return self._children[-1]

    async def _stop(self) -> None:
        """Stop all processes, the balancer first; cancellation is deferred until all have ended."""
        stopping = asyncio.gather(*(child.stop() for child in reversed(self._children)))
        was_cancelled = False
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                was_cancelled = True
        self._folder.cleanup()
        if was_cancelled:
            raise asyncio.CancelledError


def returns_of(steps: Sequence[Step], workers: int) -> list[int]:
    """Number of times each worker returns after being gone."""
    counts, is_gone = [0] * workers, [False] * workers
    for step in steps:
        counts[step.worker] += is_gone[step.worker] and not step.fault_state.is_gone
        is_gone[step.worker] = step.fault_state.is_gone
    return counts


async def all_ready(children: Sequence[Child]) -> None:
    """Wait for all ready lines. Raises the first `FleetFailedError`."""
    await processes.all_of(child.ready() for child in children)
