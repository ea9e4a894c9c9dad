"""Translate a scenario and one of its entries into a simulation model.

Every key of a scenario has the same meaning as for real processes; docs/simulator.md names those without a counterpart
in virtual time. Times are measured seconds, with the time scale applied.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from experiments.scenario.scenario import Entry, Region, Scenario
from experiments.scenario.supported import reads_reports_of, require_simulated_entry
from experiments.scenario.timeline import timeline
from experiments.simulator.model import Model, WorkerModel
from workers.service import parse_profile

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
        staleness=scenario.staleness or None,
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
        priority=region.priority,
    )
