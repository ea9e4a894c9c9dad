"""Speed of the simulator beside SimPy with the same model: `python -m benchmarks simulator`.

Measures CPU time of this process only; contenders alternate over several rounds. Their mean
counts, with its interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from random import Random
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness.verdicts import side_of
from experiments.generator.arrivals import poisson
from experiments.platform.session import BoundVerdict, Session
from experiments.platform.terminal import plain_table
from experiments.simulator import clock
from experiments.simulator.model import Model, WorkerModel
from experiments.simulator.simulation import Simulation
from experiments.stats.comparison import typical

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
    """The simulator under three policies with a bound and one without, and SimPy if installed."""
    ours = [
        ("least-in-flight", 500_000.0),
        ("steelyard", 120_000.0),
        ("peak-ewma", 150_000.0),
        ("round-robin", 0.0),
    ]
    found = [Simulator(f"steelyard, {name}", simulated({"name": name}), bound) for name, bound in ours]
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


def measure_speed(session: Session, requests: int, rounds: int) -> int:
    """Measure and present; returns the exit code. Bounds apply to the compiled build."""
    speeds: dict[str, list[float]] = {simulator.name: [] for simulator in simulators()}
    with session.interruptible(rounds):
        for number in range(rounds):
            for simulator in simulators():
                began_at = time.process_time()
                simulator.run(requests, number + 1)
                speeds[simulator.name].append(requests / (time.process_time() - began_at))
            last = ", ".join(f"{speed[-1]:,.0f}/s" for speed in speeds.values())
            session.run_ended(f"round {number + 1}", last)
    is_compiled = not str(clock.__file__).endswith(".py")
    found = {simulator: speeds[simulator.name] for simulator in simulators() if speeds[simulator.name]}
    return session.conclude(
        [verdict(simulator, own, is_compiled) for simulator, own in found.items() if simulator.bound],
        [table_of({simulator.name: own for simulator, own in found.items()})] if found else (),
        "" if find_spec("simpy") else ABSENT,
        requests=requests,
        speeds=speeds,
    )


def verdict(simulator: Simulator, speeds: Sequence[float], compiled: bool) -> BoundVerdict:
    """Verdict on the interval of one simulator; not judged in the pure source."""
    found = typical(speeds)
    is_met = side_of(found, simulator.bound, is_least=True) if compiled else None
    build = "the compiled build" if compiled else "the pure source"
    bound = f"≥ {simulator.bound:,.0f} requests per second, compiled"
    return BoundVerdict(
        simulator.name, bound, is_met, f"{found.ratio:,.0f} [{found.low:,.0f}–{found.high:,.0f}] in {build}"
    )


def table_of(found: Mapping[str, Sequence[float]]) -> Table:
    title = f"Simulated requests per second of CPU time, {ENDPOINTS} endpoints"
    means = {name: typical(speeds) for name, speeds in found.items()}
    rows = [
        (name, *(f"{part:,.0f}" for part in (mean.ratio, mean.low, mean.high)))
        for name, mean in means.items()
    ]
    return plain_table(("", "mean", "95 % from", "to"), rows, title=title)
