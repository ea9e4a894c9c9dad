"""Speed of the simulator beside SimPy with the same model: `python -m benchmarks simulator`.

Measures CPU time of this process only; contenders alternate over several rounds, and the median counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.load.arrivals import poisson
from experiments.simulator import clock
from experiments.simulator.model import Model, WorkerModel
from experiments.simulator.simulation import Simulation
from experiments.terminal import console_here
from policies import registry

ENDPOINTS = 100
LOAD = 0.9
REQUESTS = 300_000
ROUNDS = 5
ABSENT = "SimPy is not installed: pip install simpy"


@dataclass(frozen=True, slots=True)
class Simulator:
    """One simulator. `run(requests, seed)` simulates; `bound` is the least requests per second, 0 for none."""

    name: str
    run: Callable[[int, int], None]
    bound: float = 0.0


def simulators() -> list[Simulator]:
    """The simulator under two policies with a bound and one without, and SimPy if installed."""
    ours = [("least-in-flight", 250_000.0), ("peak-ewma", 150_000.0), ("round-robin", 0.0)]
    found = [
        Simulator(f"steelyard, {name}", simulated({"name": name}), bound)
        for name, bound in ours
        if name in registry.TABLE
    ]
    return [*found, Simulator("SimPy, two choices", in_simpy)] if find_spec("simpy") else found


def simulated(policy: Mapping[str, Any]) -> Callable[[int, int], None]:
    """Simulation of a policy with the real router over 100 exponential workers at 90 % load."""
    workers = tuple(WorkerModel(f"w{number}") for number in range(ENDPOINTS))

    def run(requests: int, seed: int) -> None:
        instants = poisson(LOAD * ENDPOINTS, requests, np.random.default_rng(seed))
        Simulation(Model(workers=workers, policy=policy), seed).open(instants)

    return run


def in_simpy(requests: int, seed: int) -> None:
    """The same queues in SimPy, with a plain choice of two instead of a router and a policy."""
    import simpy

    rng, world = Random(seed), simpy.Environment()
    servers = [simpy.Resource(world) for _ in range(ENDPOINTS)]
    in_flight = [0] * ENDPOINTS

    def request() -> Any:
        one, other = rng.sample(range(ENDPOINTS), 2)
        chosen = other if in_flight[other] < in_flight[one] else one
        in_flight[chosen] += 1
        with servers[chosen].request() as turn:
            yield turn
            yield world.timeout(rng.expovariate(1.0))
        in_flight[chosen] -= 1

    def arrivals() -> Any:
        for _ in range(requests):
            yield world.timeout(rng.expovariate(LOAD * ENDPOINTS))
            world.process(request())

    world.process(arrivals())
    world.run()


def is_compiled() -> bool:
    """Whether the hot path is compiled."""
    return not str(clock.__file__).endswith(".py")


def measure(requests: int, rounds: int, console: Console) -> dict[str, list[float]]:
    """Requests per second of CPU time by contender, one value for each round."""
    found: dict[str, list[float]] = {simulator.name: [] for simulator in simulators()}
    for number in range(rounds):
        for simulator in simulators():
            began_at = time.process_time()
            simulator.run(requests, number + 1)
            found[simulator.name].append(requests / (time.process_time() - began_at))
        console.print(f"round {number + 1} of {rounds}", highlight=False)
    return found


def bench_simulator(requests: int, rounds: int, file: Path | None, *, check: bool) -> int:
    """Measure and print; returns 1 with `check` if a bound is missed. Bounds apply to the compiled build."""
    console = console_here()
    build = "compiled" if is_compiled() else "pure Python"
    found = measure(requests, rounds, console)
    table = Table(title=f"Simulated requests per second of processor time, {ENDPOINTS} endpoints, {build}")
    for heading in ("", "median", "least", "most", "at least"):
        table.add_column(heading, justify="right" if heading else "left")
    missed = False
    for simulator in simulators():
        speeds = found[simulator.name]
        is_off = is_compiled() and median(speeds) < simulator.bound
        missed |= is_off
        figures = (median(speeds), min(speeds), max(speeds))
        bound = f"{simulator.bound:,.0f}{' MISSED' * is_off}" if simulator.bound else ""
        table.add_row(simulator.name, *(f"{figure:,.0f}" for figure in figures), bound)
    console.print(table)
    if not find_spec("simpy"):
        console.print(ABSENT)
    if file is not None:
        file.write_text(json.dumps({"build": build, "requests": requests, "speeds": found}, indent=2) + "\n")
    return int(check and missed)
