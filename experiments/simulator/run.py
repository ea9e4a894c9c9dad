"""One simulated run of a scenario, equivalent to a measured one.

`simulate` is a pure function of its arguments. It returns a `Run` like any other, which all statistics, tables and
figures accept; its `world` is "simulated". In its `Model` every key of the scenario has the same meaning as for real
processes; docs/simulator.md names those without a counterpart in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

import numpy as np

from experiments.generator.arrivals import first_instants
from experiments.results.directory import facts_of
from experiments.run_data import Run, Samples, region_numbers
from experiments.scenario.places import first_connections, places_of, warm_requests
from experiments.scenario.scenario import Entry, Region, Scenario
from experiments.scenario.supported import reads_reports_of, require_simulated_entry
from experiments.scenario.timeline import timeline
from experiments.simulator.model import Model, WorkerModel
from experiments.simulator.simulation import Simulation
from experiments.stats.measures import POLICY_FAILED
from policies.routing.router import Router
from workers.service import parse_profile

Simulate = Callable[[Scenario, Entry, int, int, int], Run]
"""(scenario, entry, block, order, seed of the block) -> run; pure."""


def simulate(
    scenario: Scenario, entry: Entry, block: int, order: int, seed: int, *, is_emulated: bool = False
) -> Run:
    """Simulate `entry` under the `seed` of its block. Raises `BadInputError`, `SimulationError`."""
    model = model_of(scenario, entry, seed, is_emulated=is_emulated)
    simulation = Simulation(model, seed, entry.label)
    warm = warm_requests(scenario, entry) if scenario.warmup else 0
    if warm:  # through the balancer at the load's concurrency, as before a measured run; not in the samples
        simulation.closed(min(first_connections(scenario, entry), warm), warm)
    load = scenario.load_of(entry)
    simulation.begin_steps()
    if load.mode == "closed":
        columns = simulation.closed(load.batch, load.planned)
    else:
        columns = simulation.open(first_instants(load, seed, scenario.time_scale), load.keys)
    samples = columns.samples(simulation.start, model.overhead, region_numbers(places_of(scenario)))
    status = balancer_status(simulation)
    return simulated_run(
        scenario, entry, samples, status, block=block, order=order, seed=seed, warmup_requests=warm
    )


def simulated_run(
    scenario: Scenario, entry: Entry, samples: Samples, status: dict[str, Any], **others: int
) -> Run:
    """Run of these samples and of the balancers' status, with `others` of its facts."""
    reasons, places = faults(status["policy"], samples), places_of(scenario)
    facts = facts_of(
        scenario,
        entry,
        len(samples),
        samples,
        world="simulated",
        places=places,
        invalid_reasons=reasons,
        status=status,
        **others,
    )
    return Run(facts, samples)


def balancer_status(simulation: Simulation) -> dict[str, Any]:
    balancers = simulation.fleet.balancers
    worker_connections = simulation.fleet.all_connections()
    return {
        "policy": policy_status(simulation.model.policy["name"], [balancer.router for balancer in balancers]),
        "requests": sum(balancer.requests for balancer in balancers),
        "retried": sum(balancer.retried for balancer in balancers),
        "hedged": sum(balancer.hedged for balancer in balancers),
        "hedges_won": sum(balancer.hedges_won for balancer in balancers),
        "connections": {
            "opened": sum(p.opened_in_all for p in worker_connections),
            "reused": sum(p.reused for p in worker_connections),
        },
    }


def policy_status(name: str, routers: Sequence[Router]) -> dict[str, Any]:
    """Part of the status about the policy."""
    return {
        "name": name,
        "routed": sum(router.routed for router in routers),
        "fallback_picks": sum(router.fallback_picks for router in routers),
        "last_fault": next((router.last_fault for router in routers if router.last_fault), None),
    }


def faults(policy: Mapping[str, Any], samples: Samples) -> tuple[str, ...]:
    """Reasons why the run is invalid: fallback picks by another policy."""
    picks = policy["fallback_picks"]
    if not picks and bool(np.isfinite(samples.ended_at).all()):
        return ()
    return (f"{POLICY_FAILED} {picks} times and was stood in for: {policy['last_fault']}",)


OVERHEAD: Final = 0.0005
"""Seconds of a request that neither worker nor network account for: balancer, load generator and loopback. The minimum
over some thousand measured requests; a busy machine adds milliseconds.
"""


def model_of(scenario: Scenario, entry: Entry, seed: int, *, is_emulated: bool = False) -> Model:
    """Model of `entry` under the seed of a block: the scenario itself, or its emulation on loopback.

    Raises `BadInputError` for a setting of the balancer that is not simulated."""
    require_simulated_entry(scenario, entry)
    scale = scenario.time_scale
    return Model(
        workers=tuple(worker_of(*place, scale, is_emulated) for place in scenario.numbered_workers),
        policy=policy_of(scenario, entry),
        balancers=scenario.balancers,
        staleness=scenario.staleness * scale,
        timeout=scenario.timeout * scale,
        overhead=OVERHEAD,
        home=scenario.home_region,
        mechanisms=scenario.mechanisms_of(entry),
        steps=timeline(scenario, seed),
        reports=reads_reports_of(entry),
    )


def policy_of(scenario: Scenario, entry: Entry) -> dict[str, Any]:
    """Policy name and options; a static split gets the rate for which it is optimised."""
    spec = entry.policy.model_dump()
    if spec["name"] == "oracle-static-split":
        spec.setdefault("rate", scenario.load_of(entry).mean_rate / scenario.time_scale)
    return spec


def worker_of(region: Region, number: int, scale: float, is_emulated: bool) -> WorkerModel:
    """Model of worker `number` of a region."""
    return WorkerModel(
        id=f"{region.name}-{number}",
        region=region.name,
        service=parse_profile(region.service).scaled(scale),
        speed=region.speed_of(number),
        slots=region.slots,
        queue=region.queue,
        discipline="fifo" if region.discipline == "fifo" else "shared",
        rtt=region.rtt * scale,
        setup_rtts=region.setup_rtts,
        idle_timeout=inf if region.idle_timeout is None else region.idle_timeout * scale,
        is_emulated=is_emulated,
        weight=region.weight_of(number),
        priority=region.priority_of(number),
        max_in_flight=region.max_in_flight_of(number),
    )
