"""Result sets made without a network, exactly repeatable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results.directory import Campaign, PlannedRun, save_campaign, save_result
from experiments.run_data import Kind, Run
from experiments.scenario.files import load_scenario
from experiments.scenario.scenario import Entry, Scenario
from experiments.simulator.run import simulate

LATE = "generator lag may be 60 % of the mean latency, 50 % allowed"


def plan(scenario: Scenario) -> tuple[PlannedRun, ...]:
    """Every entry in every block, in the scenario's own order."""
    return tuple(
        PlannedRun(block=block, order=order, label=entry.label, seed=100 + block)
        for block in range(scenario.blocks)
        for order, entry in enumerate(scenario.entries)
    )


def save_set(
    directory: Path,
    scenario: Scenario,
    run_of: Callable[[Scenario, Entry, int, int, int], Run],
    stop_after: int | None = None,
    **about: Any,
) -> None:
    """Write a campaign and its runs, which are those of a simulator; `about` changes what the campaign says."""
    usual = {
        "command": "experiments run",
        "started_at": "2026-01-01T00:00:00+00:00",
        "versions": {"steelyard": "0.2.0", "python": "3.11.7", "numpy": "2.4.6"},
        "machine": "2 processors, Linux",
        "plan": plan(scenario),
    }
    campaign = Campaign(scenario=scenario, **usual | about)
    save_campaign(campaign, directory)
    for planned in campaign.plan[:stop_after]:
        entry = scenario.entry(planned.label)
        run = run_of(scenario, entry, planned.block, planned.order, planned.seed)
        save_result(run, planned, directory)


def write_results(
    directory: Path,
    blocks: int,
    requests: int,
    failures: float = 0.0,
    late: str = "",
    stop_after: int | None = None,
) -> Scenario:
    """Write results of the `regions` scenario as if they had been measured.

    A part `failures` of the requests ends in a reset; the runs of the entry labelled `late` are invalid by the
    generator's lag.
    """

    def measured(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
        run = simulate(scenario, entry, block, order, seed)
        is_lost = np.random.default_rng([seed, order]).random(len(run.samples)) < failures
        samples = replace(run.samples, kind=np.where(is_lost, Kind.RESET, run.samples.kind))
        reasons = (LATE,) if entry.label == late else run.facts.invalid_reasons
        facts = run.facts.model_copy(update={"world": "measured", "invalid_reasons": reasons})
        return Run(facts, samples)

    scenario = load_scenario("regions")
    load = scenario.load.model_copy(update={"requests": requests})
    scenario = scenario.model_copy(update={"blocks": blocks, "load": load})
    command = f"experiments run regions --blocks {blocks} --requests {requests} --seed 1"
    save_set(directory, scenario, measured, stop_after, command=command)
    return scenario
