"""A results directory: `campaign.json`, and `runs/` with one npz file per run; `set-aside/` has those measured again.

A report needs nothing but the directory. It is written during the campaign, so a stopped campaign can be reported on.

The plan is one of randomised complete blocks: within a block every entry runs once, in a random order, with the same
seeds for arrivals and demand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from experiments.errors import BadInputError
from experiments.platform.build import versions
from experiments.platform.printable import PrintableName
from experiments.run_data import Run, RunFacts, Samples, WorldName, load_run, save_run
from experiments.scenario.scenario import Entry, Scenario
from experiments.scenario.service import LiveScenario, ServiceScenario
from experiments.stats.measures import achieved_rate, spoils_block

CAMPAIGN_FILE = "campaign.json"
RUNS = "runs"
SET_ASIDE = "set-aside"
ATTEMPT = re.compile(r"-attempt-(\d{1,6})\.npz\Z")
"""End of the name of a run in `SET_ASIDE`."""


class PlannedRun(BaseModel):
    """One run of the plan: the entry, its block and its position in the block."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    block: int
    order: int
    label: PrintableName
    seed: int = Field(description="of the block, equal for all its entries")

    @property
    def file_name(self) -> str:
        """File name that sorts in execution order; the label is in the file."""
        return f"block-{self.block:03d}-run-{self.order:02d}.npz"


class PolicyFile(BaseModel):
    """A file or module that policies of the campaign come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    version: str = Field(description="beginning of the SHA-256 of the file and of the modules beside it")


class Campaign(BaseModel):
    """The request and the plan of a campaign; the scenario includes the overrides."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    world: WorldName = "measured"
    scenario: Scenario | ServiceScenario | LiveScenario
    command: str = Field(description="command line that repeats the campaign")
    started_at: str = Field(description="UTC, ISO 8601")
    versions: dict[str, str]
    machine: str = Field(description="processor count and system, for the reader")
    policy_files: tuple[PolicyFile, ...] = Field(default=(), description="files of policies, with versions")
    plan: tuple[PlannedRun, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """A results directory read into memory: the campaign and its runs. `set_aside` are files of runs measured again."""

    directory: Path
    campaign: Campaign
    runs: tuple[Run, ...]
    set_aside: tuple[Path, ...] = ()

    @property
    def scenario(self) -> Scenario:
        return self.campaign.scenario

    @property
    def missing(self) -> int:
        """Number of planned runs without a file."""
        return len(self.campaign.plan) - len(self.runs)

    def entries(self) -> list[Entry]:
        """Entries of the scenario that have at least one run, in the scenario's order."""
        measured = {run.facts.label for run in self.runs}
        return [entry for entry in self.scenario.entries if entry.label in measured]

    def runs_of(self, label: str) -> list[Run]:
        """Runs of an entry in execution order."""
        return [run for run in self.runs if run.facts.label == label]


def believable(results: Results, label: str) -> list[Run]:
    """Valid runs of an entry in whole blocks, as they are compared; else its valid runs, or all of them, for figures
    that are then marked invalid.
    """
    spoiled = {run.facts.block for run in results.runs if spoils_block(run.facts.invalid_reasons)}
    runs = results.runs_of(label)
    valid = [run for run in runs if run.facts.is_valid]
    return [run for run in valid if run.facts.block not in spoiled] or valid or runs


def in_order(file: Path) -> tuple[int, str]:
    """Key that sorts run files as they were executed: the number of a block has three digits or more."""
    return len(file.name), file.name


def require_new(directory: Path) -> None:
    """Check that a directory for results is absent or empty, so that no result set mixes with another.

    Raises `BadInputError`.
    """
    try:
        is_free = not any(directory.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInputError(f"--out: {directory}: {error.strerror}") from None
    if not is_free:
        raise BadInputError(f"--out: {directory} is not empty; name another directory")


def save_campaign(campaign: Campaign, directory: Path) -> None:
    """Write `campaign.json` into a new directory. Raises `BadInputError` when it is not empty or not writable."""
    require_new(directory)
    try:
        (directory / RUNS).mkdir(parents=True, exist_ok=True)
        with (directory / CAMPAIGN_FILE).open("x", encoding="utf-8") as file:
            file.write(campaign.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise BadInputError(f"--out: {directory} cannot be written: {error.strerror}") from None


def save_result(run: Run, planned: PlannedRun, directory: Path) -> None:
    """Write a run. Raises `BadInputError`, for one where the disk is full."""
    path = directory / RUNS / planned.file_name
    try:
        save_run(run, path)
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror}") from None


def set_aside(planned: Sequence[PlannedRun], directory: Path) -> None:
    """Move the runs of a block that is measured again to `SET_ASIDE`, so that they are counted and can be read."""
    folder = directory / SET_ASIDE
    folder.mkdir(exist_ok=True)
    stems = {run: run.file_name.removesuffix(".npz") for run in planned}
    attempt = 1 + max(
        (attempt_of(file) for stem in stems.values() for file in folder.glob(f"{stem}-*")), default=0
    )
    for run, stem in stems.items():
        if (file := directory / RUNS / run.file_name).exists():
            file.rename(folder / f"{stem}-attempt-{attempt}.npz")


def attempt_of(file: Path) -> int:
    """Number of the attempt of a run that was set aside, from 1."""
    found = ATTEMPT.search(file.name)
    return int(found[1]) if found else 1


def load_campaign(directory: Path) -> Campaign:
    """Read the campaign of a results directory. Raises `BadInputError`."""
    path = directory / CAMPAIGN_FILE
    try:
        return Campaign.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"{directory}: no results here: {CAMPAIGN_FILE}: {error.strerror}") from None
    except ValidationError as error:
        raise BadInputError(f"{path}: {error.errors()[0]['msg']}") from None


def load_results(directory: Path) -> Results:
    """Read a results directory. Raises `BadInputError` when it holds no campaign or no run, or a run of another."""
    campaign = load_campaign(directory)
    files = sorted((directory / RUNS).glob("*.npz"), key=in_order)
    runs = tuple(map(load_run, files))
    if not runs:
        raise BadInputError(f"{directory}: no run has been measured yet")
    planned = {run.file_name: run for run in campaign.plan}
    for file, run in zip(files, runs, strict=True):
        facts = {key: getattr(run.facts, key) for key in PlannedRun.model_fields}
        if planned.get(file.name) != PlannedRun(**facts):
            raise BadInputError(f"{file}: no run of this campaign, whose plan is in {CAMPAIGN_FILE}")
    return Results(directory, campaign, runs, tuple(sorted((directory / SET_ASIDE).glob("*.npz"))))


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


def facts_of(scenario: Scenario, entry: Entry, requests: int, samples: Samples, **others: Any) -> RunFacts:
    """Facts of a run of a load generator or a simulation in which `requests` were planned, and the `others`."""
    load = scenario.load_of(entry)
    is_open = load.mode == "open"
    return RunFacts(
        label=entry.label,
        policy=entry.policy.model_dump(),
        mode=load.mode,
        batch=None if is_open else load.batch,
        offered_rate=requests / load.duration / scenario.time_scale if is_open else None,
        achieved_rate=achieved_rate(samples),
        requests=requests,
        timeout=scenario.timeout * scenario.time_scale,
        time_scale=scenario.time_scale,
        tpot_slo=None if scenario.inference is None else scenario.inference.tpot_slo,
        versions=versions(),
        **others,
    )
