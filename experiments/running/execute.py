"""Execution of a campaign: its planned runs, one after another, by a runner.

A run's file is written before the next run starts, so stopping costs one run. With patience, a block with a disturbed
run is repeated as a whole, and the runs that it replaces are set aside.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path

from experiments.errors import BadInputError
from experiments.platform.build import versions
from experiments.platform.terminal import signals_interrupt
from experiments.results.directory import (
    Campaign,
    PlannedRun,
    PolicyFile,
    plan,
    save_campaign,
    save_result,
    set_aside,
)
from experiments.run_data import Run, WorldName
from experiments.running.patience import Patience, has_lagged
from experiments.running.runner import Interrupted, Observer, Runner
from experiments.scenario.scenario import Scenario
from experiments.scenario.service import RunningScenario
from policies import registry
from policies.errors import PoliciesError


def prepare(scenario: Scenario, command: str, directory: Path, world: WorldName = "measured") -> Campaign:
    """Write `campaign.json` with the plan. Raises `BadInputError` when the directory cannot be used."""
    campaign = Campaign(
        world=world,
        scenario=scenario,
        command=command,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        machine=f"{os.cpu_count()} processors, {platform.system()} {platform.machine()}",
        policy_files=policy_files(scenario),
        plan=plan(scenario),
    )
    save_campaign(campaign, directory)
    return campaign


def policy_files(scenario: Scenario) -> tuple[PolicyFile, ...]:
    """Return the files of the scenario's policies as they are now. Raises `BadInputError`.

    A running balancer has read the files of its policies itself, so its scenario has none.
    """
    if isinstance(scenario, RunningScenario):
        return ()
    try:
        specs = [entry.policy.model_dump() for entry in scenario.entries]
        names = [name for spec in specs for name in registry.references_in(spec)]
        sources = [registry.LIBRARY.source_of(name) for name in dict.fromkeys(names)]
    except PoliciesError as error:
        raise BadInputError(f"policies: {error}") from None
    versions = {source.path: source.version for source in sources}
    return tuple(PolicyFile(path=path, version=version) for path, version in versions.items())


def execute(
    campaign: Campaign, directory: Path, runner: Runner, observer: Observer, patience: Patience | None = None
) -> None:
    """Execute every planned run of the campaign and write it to the directory.

    Raises `ExperimentError`, and `KeyboardInterrupt` on Ctrl-C, SIGTERM and SIGHUP; an interrupted run is written too.
    """
    patience = patience or Patience()
    for _, block in groupby(campaign.plan, key=lambda planned: planned.block):
        runs = tuple(block)
        patience.begin(len(runs))
        while patience.should_repeat(execute_block(campaign, runs, directory, runner, observer, patience)):
            set_aside(runs, directory)


def execute_block(
    campaign: Campaign,
    block: Sequence[PlannedRun],
    directory: Path,
    runner: Runner,
    observer: Observer,
    patience: Patience,
) -> list[bool]:
    """Execute the runs of one block; returns whether each was disturbed."""
    disturbed = []
    for planned in block:
        with signals_interrupt():
            patience.quiet(partial(observer.machine_busy, planned))
            observer.run_started(planned)
            run = execute_run(campaign, planned, directory, runner, observer)
        observer.run_ended(planned, run)
        disturbed.append(has_lagged(run))
        del run  # before the next one, which may need as much memory
    return disturbed


def execute_run(
    campaign: Campaign, planned: PlannedRun, directory: Path, runner: Runner, observer: Observer
) -> Run:
    """Execute one planned run and write it.

    Raises `BadInputError` for a run with another version of a policy's file, which is not written.
    """
    try:
        run = runner.run(campaign.scenario, planned, observer)
    except Interrupted as interrupted:
        if len(interrupted.run.samples):
            save_result(interrupted.run, planned, directory)
        raise KeyboardInterrupt from None
    require_same_files(campaign.policy_files, run)
    save_result(run, planned, directory)
    return run


def require_same_files(files: tuple[PolicyFile, ...], run: Run) -> None:
    """Check that the balancer of a run has loaded the campaign's versions. Raises `BadInputError`."""
    known = {file.path: file.version for file in files}
    for found in run.facts.status.get("policy", {}).get("files", ()):
        path, version = found["path"], found["version"]
        if version != known.get(path, version):
            raise BadInputError(
                f"{path} was changed during the campaign: version {known[path]} before, {version} now; "
                "runs of both cannot be compared, so the campaign ends here"
            )
