"""A campaign: randomised complete blocks of runs, written to disk as they end.

Within a block every entry runs once, in a random order, with the same seeds for arrivals and demand. A run's file is
written before the next run starts, so stopping costs one run. With patience, a disturbed run is repeated at once, in
its place within the block.
"""

from __future__ import annotations

import asyncio
import os
import platform
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from experiments.campaign.patience import Patience
from experiments.campaign.results import Campaign, PlannedRun, save_campaign, save_result
from experiments.campaign.scenario import Scenario
from experiments.campaign.trial import Interrupted, run_trial
from experiments.campaign.versions import versions
from experiments.load.ledger import Ledger
from experiments.load.samples import Run, World


class Observer(Protocol):
    """Callbacks for the progress of a campaign."""

    def machine_busy(self, planned: PlannedRun, taken: float) -> None: ...
    def run_started(self, planned: PlannedRun) -> None: ...
    def load_started(self, ledger: Ledger) -> None: ...
    def run_ended(self, planned: PlannedRun, run: Run) -> None: ...


def plan(scenario: Scenario) -> tuple[PlannedRun, ...]:
    """Plan of all runs in execution order, determined by the scenario and its seed."""
    return tuple(run for block in range(scenario.blocks) for run in plan_block(scenario, block))


def plan_block(scenario: Scenario, block: int) -> list[PlannedRun]:
    """Runs of one block, with the block's own seed and random order."""
    rng = np.random.default_rng([scenario.seed, block])
    seed = int(rng.integers(1, 2**31))
    order = rng.permutation(len(scenario.entries))
    return [
        PlannedRun(block=block, order=place, label=scenario.entries[index].label, seed=seed)
        for place, index in enumerate(order)
    ]


def prepare(scenario: Scenario, command: str, directory: Path, world: World = "measured") -> Campaign:
    """Write `campaign.json` with the plan. Raises `BadInputError` when the directory cannot be used."""
    campaign = Campaign(
        world=world,
        scenario=scenario,
        command=command,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        machine=f"{os.cpu_count()} processors, {platform.system()} {platform.machine()}",
        plan=plan(scenario),
    )
    save_campaign(campaign, directory)
    return campaign


async def carry_out(
    campaign: Campaign, directory: Path, observer: Observer, patience: Patience | None = None
) -> None:
    """Run the plan. When cancelled, the current run is written too, marked as interrupted."""
    patience = patience or Patience()
    for planned in campaign.plan:
        patience.begin()
        is_wanted = True
        while is_wanted:
            await patience.quiet(partial(observer.machine_busy, planned))
            observer.run_started(planned)
            run = await run_planned(campaign, planned, directory, observer)
            observer.run_ended(planned, run)
            is_wanted = patience.should_repeat(run)


async def run_planned(campaign: Campaign, planned: PlannedRun, directory: Path, observer: Observer) -> Run:
    """Execute one planned run and write it, overwriting a disturbed attempt before it."""
    try:
        run = await run_trial(campaign.scenario, planned, observer.load_started)
    except Interrupted as interrupted:
        if len(interrupted.run.samples):
            save_result(interrupted.run, planned, directory)
        raise asyncio.CancelledError from None
    save_result(run, planned, directory)
    return run
