"""Result sets made without a network: the `regions` scenario as a small closed-loop simulation.

Every worker is a first-come queue with one slot; a request travels half the round trip, waits, is served, and
travels back. Good enough to look like the real thing in every figure, and exactly repeatable.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results.directory import Campaign, PlannedRun, save_campaign, save_result
from experiments.run_data import Floats, Ints, Kind, Place, Run, RunFacts, Samples
from experiments.scenario.files import load_scenario
from experiments.scenario.scenario import Entry, Scenario
from experiments.stats.measures import lag_percentiles, validity

LATE = "generator lag may be 60 % of the mean latency, 50 % allowed"

Pick = Callable[[np.random.Generator, int, Ints], int]


def spilling(rng: np.random.Generator, index: int, in_flight: Ints) -> int:
    """Least predicted completion over all workers."""
    rtts = np.array([0.35, 0.35, 0.45, 0.45, 0.58, 0.58])
    return int(np.argmin(rtts + 0.02 * np.maximum(0, in_flight - rtts / 0.02)))


PICKS: dict[str, Pick] = {
    "random": lambda rng, index, in_flight: int(rng.integers(6)),
    "round-robin": lambda rng, index, in_flight: index % 6,
    "region-round-robin": lambda rng, index, in_flight: 2 * (index % 3) + (index // 3) % 2,
    "single-region": lambda rng, index, in_flight: index % 2,
    "least-in-flight": lambda rng, index, in_flight: int(np.argmin(in_flight + rng.random(6))),
    "latency-weighted": lambda rng, index, in_flight: int(
        rng.choice(6, p=[0.2, 0.2, 0.17, 0.17, 0.13, 0.13])
    ),
    "region-aware": spilling,
    "steelyard": spilling,
}


def simulate(scenario: Scenario, entry: Entry, planned: PlannedRun, failures: float = 0.0) -> Run:
    """One closed-loop run of the entry; a part `failures` of the requests ends in a reset."""
    rng = np.random.default_rng([planned.seed, planned.order])
    rtts = np.repeat([r.rtt for r in scenario.regions], [r.workers for r in scenario.regions])
    load = scenario.load_of(entry)
    rows: list[tuple[float, ...]] = []
    in_flight, free_at = np.zeros(len(rtts), dtype=np.int64), np.zeros(len(rtts))
    events = [(0.0, slot, -1) for slot in range(load.batch)]
    pick = PICKS[entry.policy.name]
    for index in range(load.requests):
        now, slot, done = heapq.heappop(events)
        in_flight[done] -= done >= 0
        worker = pick(rng, index, in_flight)
        in_flight[worker] += 1
        sent = now + abs(rng.normal(0, 0.0001))
        free_at[worker] = max(free_at[worker], sent + rtts[worker] / 2) + rng.uniform(0.019, 0.021)
        ended = free_at[worker] + rtts[worker] / 2
        kind = Kind.RESET if rng.random() < failures else Kind.OK
        rows.append((now, sent, ended - 0.0002, ended, 200, kind, worker, worker // 2, index, 1))
        heapq.heappush(events, (ended, slot, worker))
    return as_run(scenario, entry, planned, rows)


def as_run(scenario: Scenario, entry: Entry, planned: PlannedRun, rows: list[tuple[float, ...]]) -> Run:
    """Columns and facts from rows."""
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    whole: list[Any] = [column.astype(np.int64) if i >= 4 else column for i, column in enumerate(columns)]
    samples = Samples(**{field.name: column for field, column in zip(fields(Samples), whole, strict=False)})
    lag_p50, lag_p99 = lag_percentiles(samples)
    facts = RunFacts(
        label=entry.label,
        policy=entry.policy.model_dump(),
        mode="closed",
        batch=scenario.load_of(entry).batch,
        requests=len(samples),
        block=planned.block,
        order=planned.order,
        seed=planned.seed,
        timeout=scenario.timeout,
        lag_p50=lag_p50,
        lag_p99=lag_p99,
        places=tuple(
            Place(worker=f"{region.name}-{number}", region=region.name)
            for region in scenario.regions
            for number in range(region.workers)
        ),
    )
    return Run(facts.model_copy(update={"invalid_reasons": validity(facts, samples)}), samples)


def plan(scenario: Scenario) -> tuple[PlannedRun, ...]:
    """Every entry in every block, in the scenario's own order."""
    return tuple(
        PlannedRun(block=block, order=order, label=entry.label, seed=100 + block)
        for block in range(scenario.blocks)
        for order, entry in enumerate(scenario.entries)
    )


def write_results(
    directory: Path,
    blocks: int,
    requests: int,
    failures: float = 0.0,
    late: str = "",
    stop_after: int = 10**9,
) -> Scenario:
    """Write a results directory; the runs of the entry labelled `late` are invalid by the generator's lag."""
    scenario = load_scenario("regions")
    load = scenario.load.model_copy(update={"requests": requests})
    scenario = scenario.model_copy(update={"blocks": blocks, "load": load})
    campaign = Campaign(
        scenario=scenario,
        command=f"experiments run regions --blocks {blocks} --requests {requests} --seed 1",
        started_at="2026-01-01T00:00:00+00:00",
        versions={"steelyard": "0.2.0", "python": "3.11.7", "numpy": "2.4.6"},
        machine="2 processors, Linux",
        plan=plan(scenario),
    )
    save_campaign(campaign, directory)
    entries = {entry.label: entry for entry in scenario.entries}
    for planned in campaign.plan[:stop_after]:
        run = simulate(scenario, entries[planned.label], planned, failures)
        if planned.label == late:
            run = Run(run.facts.model_copy(update={"invalid_reasons": (LATE,)}), run.samples)
        save_result(run, planned, directory)
    return scenario


def hand_made(
    latency: list[float], kind: list[Kind] | None = None, sent_late: float = 0.0, **facts: object
) -> Run:
    """Row i is due at i × 10 ms, leaves `sent_late` later, and takes `latency[i]` seconds from being due."""
    count = len(latency)
    due: Floats = np.linspace(0.0, 0.01 * (count - 1), count)
    whole = np.zeros(count, dtype=np.int64)
    samples = Samples(
        scheduled_at=due,
        sent_at=due + sent_late,
        first_byte_at=due + np.array(latency),
        ended_at=due + np.array(latency),
        status=whole + 200,
        kind=np.array(kind if kind is not None else [Kind.OK] * count, dtype=np.int64),
        worker=whole,
        region=whole,
        sequence=np.arange(count),
        attempts=whole,
    )
    plain: dict[str, object] = {
        "label": "random",
        "policy": {"name": "random"},
        "mode": "open",
        "requests": count,
        "block": 0,
        "order": 0,
        "seed": 1,
        "timeout": 5.0,
        "places": (Place(worker="emea-0", region="emea"),),
    }
    return Run(RunFacts.model_validate(plain | facts), samples)
