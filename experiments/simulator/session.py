"""Terminal session of a simulated campaign: run it in virtual time and report it like any other.

A simulated campaign leaves the same directory as a measured one, marked as simulated.
"""

from __future__ import annotations

import gc
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from experiments.campaign import blocks
from experiments.campaign.progress import run_line
from experiments.campaign.results import Campaign, save_result
from experiments.campaign.scenario import Scenario
from experiments.campaign.session import present, stopped
from experiments.simulator.run import simulate
from experiments.terminal import console_here


def run_session(scenario: Scenario, command: str, directory: Path) -> int:
    """Simulate the scenario into `directory`; returns the exit code. Raises `ExperimentError`."""
    console = console_here()
    campaign = blocks.prepare(scenario, command, directory, world="simulated")
    console.print(Text(scenario.question, style="bold"))
    console.print(f"Simulated: {len(campaign.plan)} runs in virtual time into {directory}", highlight=False)
    try:
        carry_out(campaign, directory, console)
    except KeyboardInterrupt:
        return stopped(directory, console)
    return present(directory, console)


def carry_out(campaign: Campaign, directory: Path, console: Console) -> None:
    """Simulate every run of the plan in order."""
    entries = {entry.label: entry for entry in campaign.scenario.entries}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("simulating", total=len(campaign.plan))
        for number, planned in enumerate(campaign.plan, 1):
            entry = entries[planned.label]
            run = simulate(campaign.scenario, entry, planned.block, planned.order, planned.seed)
            save_result(run, planned, directory)
            progress.advance(task)
            console.print(run_line(campaign, number, run), highlight=False)
            del run  # or the next run needs twice the memory; a simulation contains reference cycles
            gc.collect()
