"""One simulated run of a scenario, with inference engines or other workers, as a `Run` like any other."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from math import inf
from random import Random
from typing import Any, Final

import numpy as np

from experiments.generator.arrivals import first_instants
from experiments.inference.prompts import models_of, prompts_of
from experiments.inference.simulation import InferenceSimulation
from experiments.recorded.inference_trace import Prompts
from experiments.results.directory import PlannedRun
from experiments.run_data import Run, Samples, WorldName, region_numbers
from experiments.scenario.places import places_of
from experiments.scenario.scenario import Entry, Scenario
from experiments.scenario.streams import stream
from experiments.scenario.supported import reads_reports_of
from experiments.simulator.clock import VirtualClock
from experiments.simulator.run import Simulate, policy_status, simulated_run
from experiments.simulator.run import simulate as simulate_workers
from experiments.simulator.simulation import uncollected
from policies import registry
from policies.facts import Endpoint
from policies.routing.router import Router
from workers.inference.engine import Engine


def simulate(
    scenario: Scenario, entry: Entry, block: int, order: int, seed: int, *, is_emulated: bool = False
) -> Run:
    """Simulate `entry` under the `seed` of its block, with engines or other workers. Raises `BadInputError`."""
    if scenario.inference is None:
        return simulate_workers(scenario, entry, block, order, seed, is_emulated=is_emulated)
    instants = first_instants(scenario.load, seed, 1.0)
    prompts = prompts_of(scenario, len(instants), seed)
    clock, engines = VirtualClock(), list(map(Engine, models_of(scenario, prompts)))
    routers = routers_of(scenario, entry, clock, seed)
    mechanisms = scenario.mechanisms_of(entry)
    asks = reads_reports_of(entry) or routers[0].active.probes is not None
    shared = mechanisms.shared if mechanisms.shared.enabled else None
    simulation = InferenceSimulation(
        clock,
        routers,
        engines,
        [region.rtt for region, _ in scenario.numbered_workers],
        scenario.home_region,
        mechanisms.retries,
        scenario.timeout,
        scenario.staleness if asks else inf,
        shared,
    )
    entrances = stream("entrances", seed).integers(0, len(routers), len(instants))
    with uncollected():
        simulation.run(instants, entrances.tolist(), prompts)
    samples = samples_of(scenario, simulation, prompts)
    status = status_of(entry, simulation, routers, engines)
    return simulated_run(scenario, entry, samples, status, block=block, order=order, seed=seed)


simulate_beside: Simulate = partial(simulate, is_emulated=True)
"""Simulate for comparison with a measured run: of other workers, with round trips as they are emulated."""


def routers_of(scenario: Scenario, entry: Entry, clock: VirtualClock, seed: int) -> list[Router]:
    endpoints = [
        Endpoint(
            f"{region.name}-{number}",
            f"http://{region.name}-{number}",
            region.name,
            region.weight_of(number),
            priority=region.priority_of(number),
        )
        for region, number in scenario.numbered_workers
    ]
    own = f"{seed}:{entry.label}"
    return [
        Router(
            endpoints,
            registry.from_spec(entry.policy.model_dump(), Random(f"{own}:policy:{number}")),
            clock,
            Random(f"{own}:fallback:{number}"),
            time_budget=inf,
        )
        for number in range(scenario.balancers)
    ]


def samples_of(scenario: Scenario, simulation: InferenceSimulation, prompts: Prompts) -> Samples:
    """Rows of the requests as their clients see them."""
    rows = simulation.columns.samples(0.0, 0.0, region_numbers(places_of(scenario)))
    return replace(
        rows,
        first_byte_at=np.array(simulation.first_at),
        prompt_tokens=np.array(prompts.tokens[: len(rows)], dtype=np.int64),
        cached_tokens=np.array(simulation.cached, dtype=np.int64),
        output_tokens=np.array(simulation.generated, dtype=np.int64),
    )


def status_of(
    entry: Entry, simulation: InferenceSimulation, routers: list[Router], engines: list[Engine]
) -> dict[str, Any]:
    """Status of the balancers, added up, and of each engine."""
    return {
        "policy": policy_status(entry.policy.name, routers),
        "requests": simulation.columns.count,
        "retried": simulation.retried,
        "engines": [
            {"queries": engine.queries, "hits": engine.hits, "preemptions": engine.preemptions}
            for engine in engines
        ],
    }


class SimulatedRunner:
    """Execute planned runs of any scenario in virtual time. Implements `Runner`."""

    name: Final[WorldName] = "simulated"

    def run(self, scenario: Scenario, planned: PlannedRun, observer: object = None) -> Run:
        """Simulate one planned run. Raises `BadInputError` where the simulator does not support the scenario."""
        gc.collect()  # the last simulation contains reference cycles, and the next one would need twice the memory
        entry = scenario.entry(planned.label)
        return simulate(scenario, entry, planned.block, planned.order, planned.seed)
