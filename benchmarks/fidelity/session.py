"""A fidelity session: measure and simulate each scenario into one directory with a results directory for each.

    DIR/<scenario>/measured/    DIR/<scenario>/simulated/    DIR/<scenario>/simulated-again/

A simulated run is the concatenation of `REPEATS` simulations that differ only by the draws of the balancer's decisions.
`simulated-again` is one more simulation: its distance from the others is the simulation noise of a single run, and so
of the measured one.

Measured runs are kept: the same directory resumes where it was interrupted, and invalid blocks are repeated only on
request, which sets their runs aside. Simulation takes seconds, so it is repeated every time with the current simulator.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.status import Status

from experiments.errors import BadInputError
from experiments.measured.runner import MeasuredRunner
from experiments.platform.terminal import clock
from experiments.results.directory import (
    CAMPAIGN_FILE,
    RUNS,
    Campaign,
    PlannedRun,
    Results,
    load_campaign,
    load_results,
    plan,
    save_result,
    set_aside,
)
from experiments.run_data import Run, Samples, load_run
from experiments.running import execute
from experiments.running.patience import Patience
from experiments.running.progress import CampaignProgress, expected_seconds
from experiments.scenario.files import load_scenario
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.scenario import Entry, Scenario
from experiments.scenario.supported import require_live
from experiments.simulator.run import Simulate
from experiments.stats.comparison import ENOUGH_BLOCKS
from experiments.stats.measures import INTERRUPTED

SCENARIOS = (
    "homogeneous",
    "slow-for-a-while",
    "gc-pauses",
    "kill-and-return",
    "region-surge",
    "region-brownout",
)
"""A control, a transient difference, one that averages do not show, one of processes, and two of distance. Simulation
noise is small in them: two simulations of four blocks that differ by draws alone have p99s within 7 % of each other
under any of the policies; in unequal-speeds they may differ by a factor of two, because a worker is busy for four
fifths of the time.
"""

POLICIES = ("random", "round-robin", "least-in-flight", "latency-weighted", "peak-ewma")
"""Blind; blind and even; by count; by latency; by both."""

BLOCKS = ENOUGH_BLOCKS
MEASURED, SIMULATED, AGAIN = "measured", "simulated", "simulated-again"

REPEATS = 20


@dataclass(frozen=True, slots=True)
class FidelityComparison:
    """What to measure and where. `mend`: measure invalid runs again. `patience`: seconds to wait for a quiet machine
    before each run, see `experiments/running/patience.py`.
    """

    scenarios: tuple[Scenario, ...]
    directory: Path
    command: str
    mend: bool = False
    patience: float = 0.0


def scenario_of(name: str, policies: Sequence[str], given: Overrides) -> Scenario:
    """The scenario with the chosen entries and, if one of them has it, the A/A control, and with what else is `given`.
    Raises `BadInputError`.
    """
    scenario = load_scenario(name)
    control = [entry.label for entry in scenario.entries if entry.repeat_of in policies and not given.quick]
    found = overridden(scenario, replace(given, policies=(*policies, *control)))
    require_live(found)
    return found


def run_session(comparison: FidelityComparison, console: Console, simulate: Simulate) -> None:
    """Measure missing runs and simulate all. Raises `ExperimentError`, and `KeyboardInterrupt`."""
    scenarios = comparison.scenarios
    for number, scenario in enumerate(scenarios):
        left = sum(seconds_left(each, comparison) for each in scenarios[number:])
        console.rule(f"{number + 1} of {len(scenarios)}: {scenario.name}, about {clock(left)} to the end")
        folder = comparison.directory / scenario.name
        measure(scenario, comparison, folder / MEASURED, console)
        campaign = load_campaign(folder / MEASURED)
        simulate_again(campaign, folder / SIMULATED, console, partial(repeatedly, simulate))
        simulate_again(campaign, folder / AGAIN, console, partial(otherwise, simulate, "once more"))


def repeatedly(
    simulate: Simulate, scenario: Scenario, entry: Entry, block: int, order: int, seed: int
) -> Run:
    """Concatenated samples of `REPEATS` simulations, with the facts of the first."""
    given = scenario, entry, block, order, seed
    runs = [otherwise(simulate, str(number), *given) for number in range(REPEATS)]
    columns = {
        field.name: np.concatenate([getattr(run.samples, field.name) for run in runs])
        for field in fields(Samples)
    }
    return Run(runs[0].facts, Samples(**columns))


def otherwise(
    simulate: Simulate, word: str, scenario: Scenario, entry: Entry, block: int, order: int, seed: int
) -> Run:
    """The same run with other decision draws: the simulator seeds them from the label too."""
    other = entry.model_copy(update={"label": f"{entry.label} {word}"})
    run = simulate(scenario, other, block, order, seed)
    return Run(run.facts.model_copy(update={"label": entry.label}), run.samples)


def seconds_left(scenario: Scenario, comparison: FidelityComparison) -> float:
    """Expected seconds to measure the missing runs of a scenario."""
    directory = comparison.directory / scenario.name / MEASURED
    rest = plan(scenario)
    if (directory / CAMPAIGN_FILE).exists():
        rest = missing(load_campaign(directory), directory, comparison.mend)
    return sum(expected_seconds(scenario, run) for run in rest)


def measure(scenario: Scenario, comparison: FidelityComparison, directory: Path, console: Console) -> None:
    """Run the missing part of the plan. Raises `BadInputError` if the directory holds runs of another scenario."""
    if (directory / CAMPAIGN_FILE).exists():
        campaign = load_campaign(directory)
        if campaign.scenario != scenario:
            raise BadInputError(f"--out: {directory} holds runs of other numbers; name another directory")
    else:
        campaign = execute.prepare(scenario, comparison.command, directory)
    left = missing(campaign, directory, comparison.mend)
    if not left:
        return
    set_aside(left, directory)
    rest = campaign.model_copy(update={"plan": left})
    with CampaignProgress(rest, console) as progress:
        execute.execute(rest, directory, MeasuredRunner(), progress, Patience(comparison.patience))


def missing(campaign: Campaign, directory: Path, mend: bool = False) -> tuple[PlannedRun, ...]:
    """Planned runs of blocks with a run that has no file or was interrupted; with `mend`, also of invalid blocks.

    A block is measured again as a whole, because the entry that makes it invalid may be the cause.
    """
    wanting = {run.block for run in campaign.plan if is_wanting(directory / RUNS / run.file_name, mend)}
    return tuple(run for run in campaign.plan if run.block in wanting)


def is_wanting(path: Path, mend: bool) -> bool:
    """Whether the run stored at `path` must be measured."""
    if not path.exists():
        return True
    run = load_run(path)
    return (mend and not run.facts.is_valid) or any(
        reason.startswith(INTERRUPTED) for reason in run.facts.invalid_reasons
    )


def simulate_again(campaign: Campaign, directory: Path, console: Console, simulate: Simulate) -> None:
    """Simulate the plan in virtual time, replacing earlier simulations."""
    if (directory / CAMPAIGN_FILE).exists():
        shutil.rmtree(directory)
    scenario = campaign.scenario
    execute.prepare(campaign.scenario, campaign.command, directory, world="simulated")
    with Status("simulating", console=console) as status:
        for number, run in enumerate(campaign.plan, 1):
            status.update(f"simulating, run {number} of {len(campaign.plan)}")
            made = simulate(scenario, scenario.entry(run.label), run.block, run.order, run.seed)
            save_result(made, run, directory)


def read(directory: Path) -> list[tuple[Results, Results, Results | None]]:
    """Read every scenario that has runs in both worlds, in the order of `SCENARIOS`, then by name.

    Returns measured, simulated, and simulated again if present. Raises `BadInputError` if there is none.
    """
    names = sorted(path.parent.parent.name for path in directory.glob(f"*/{MEASURED}/{CAMPAIGN_FILE}"))
    names.sort(key=lambda name: SCENARIOS.index(name) if name in SCENARIOS else len(SCENARIOS))
    both = [
        (
            load_results(directory / name / MEASURED),
            load_results(directory / name / SIMULATED),
            load_results(directory / name / AGAIN) if (directory / name / AGAIN).exists() else None,
        )
        for name in names
        if (directory / name / SIMULATED / CAMPAIGN_FILE).exists()
    ]
    if not both:
        raise BadInputError(f"{directory}: nothing has been measured and simulated here yet")
    return both
