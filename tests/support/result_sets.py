"""Result sets made without a network, exactly repeatable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.results.directory import Campaign, PlannedRun, save_campaign, save_result
from experiments.run_data import Kind, Run
from experiments.scenario.files import load_scenario
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import simulate

LATE = "generator lag may be 60 % of the mean latency, 50 % allowed"


def measured(scenario: Scenario, planned: PlannedRun, failures: float = 0.0) -> Run:
    """A simulated run as if it had been measured; a part `failures` of the requests ends in a reset."""
    entry = scenario.entry(planned.label)
    run = simulate(scenario, entry, planned.block, planned.order, planned.seed)
    is_lost = np.random.default_rng([planned.seed, planned.order]).random(len(run.samples)) < failures
    samples = replace(run.samples, kind=np.where(is_lost, Kind.RESET, run.samples.kind))
    return Run(run.facts.model_copy(update={"world": "measured"}), samples)


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
    """Write results of the `regions` scenario; the runs of the entry labelled `late` are invalid by the generator's
    lag."""
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
    for planned in campaign.plan[:stop_after]:
        run = measured(scenario, planned, failures)
        if planned.label == late:
            run = Run(run.facts.model_copy(update={"invalid_reasons": (LATE,)}), run.samples)
        save_result(run, planned, directory)
    return scenario
