"""A scenario and one of its entries, as a model.

Rule of this file: every key of a scenario means here what it means to real processes; what has no counterpart in
virtual time is named in docs/simulator.md. Times are measured ones: the time scale is in them.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from experiments.campaign.mechanisms import Mechanisms as Tables
from experiments.campaign.scenario import Entry, Region, Scenario
from experiments.campaign.timeline import timeline
from experiments.simulator.model import (
    CheckModel,
    HedgeModel,
    Mechanisms,
    Model,
    PoolModel,
    RetryModel,
    WorkerModel,
)
from policies.health.active_checks import CheckRules
from workers.service import parse_profile

OVERHEAD: Final = 0.0005
"""Seconds of a request that neither worker nor distance account for: balancer, generator and loopback. The least of
some thousand requests that were measured; a machine that has other things to do adds milliseconds of its own."""

REPORTED: Final = frozenset(("reported-load", "prequal", "c3", "steelyard"))
"""Policies that read what workers say of themselves; for the others it is not worked out."""


def model_of(scenario: Scenario, entry: Entry, seed: int, *, is_emulated: bool = False) -> Model:
    """What is simulated for `entry` under the seed of a block: the scenario itself, or its emulation on loopback."""
    scale = scenario.time_scale
    return Model(
        workers=tuple(
            worker_of(region, number, scale, is_emulated)
            for region in scenario.regions
            for number in range(region.workers)
        ),
        policy=policy_of(scenario, entry),
        balancers=scenario.balancers,
        staleness=scenario.staleness or None,
        timeout=scenario.timeout * scale,
        overhead=OVERHEAD,
        home=scenario.home_region,
        mechanisms=mechanisms_of(scenario.mechanisms_of(entry)),
        steps=timeline(scenario, seed),
        reports=entry.policy.name in REPORTED,
    )


def policy_of(scenario: Scenario, entry: Entry) -> dict[str, Any]:
    """Its name and options; a static split is told the rate that it is to be best for."""
    spec = entry.policy.model_dump()
    if spec["name"] == "oracle-static-split":
        spec.setdefault("rate", scenario.load_of(entry).mean_rate / scenario.time_scale)
    return spec


def worker_of(region: Region, number: int, scale: float, is_emulated: bool) -> WorkerModel:
    """Worker `number` of a region."""
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
    )


def mechanisms_of(tables: Tables) -> Mechanisms:
    """The balancer's tables; their durations are real seconds in any case."""
    retry, checks, hedging, timeouts = tables.retry, tables.checks, tables.hedging, tables.timeouts
    rules = CheckRules(checks.interval, checks.fast_interval, checks.rise, checks.fall)
    return Mechanisms(
        retries=RetryModel(tables.retries, retry.share, retry.per_second, frozenset(retry.statuses)),
        hedging=HedgeModel(hedging.quantile, hedging.share, hedging.least) if hedging.enabled else None,
        ejection=tables.ejection.rules(),
        checks=CheckModel(rules, checks.timeout) if checks.path is not None else None,
        panic=tables.panic.share,
        slow_start=tables.slow_start.window,
        slow_start_least=tables.slow_start.least,
        queue=tables.limits.queue,
        queue_timeout=timeouts.queue,
        in_flight=tables.limits.in_flight,
        first_byte=timeouts.first_byte,
        attempt=inf if timeouts.attempt is None else timeouts.attempt,
        pool=PoolModel(tables.pool.idle, tables.pool.risk),
    )
