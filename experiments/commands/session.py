"""Terminal session of a campaign: run it, write the report, print the table, decide the exit code.

However the campaign ends, the measured runs are on disk and are reported.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from experiments.run import execute as campaigns
from experiments.run.patience import Patience
from experiments.scenario.supported import require_live
from experiments.run.progress import Progress
from experiments.results.directory import RUNS, Campaign
from experiments.scenario.scenario import Scenario
from experiments.results.summary import Summary
from experiments.errors import ExperimentError
from experiments.report.pages import write_report
from experiments.report.tables import Cell, Table, statistics_table
from experiments.report.text import invalid_lines
from experiments.terminal import console_here, interruptible, path_line, print_stopped

STYLES = {"": "", "few": "dim italic", "bad": "red", "good": "green"}
STOPPED = 130
FULL_WIDTH = 118
ESSENTIAL = ("entry", "total", "KO", "req/s", "50th", "95th", "99th", "max")


def run_session(scenario: Scenario, command: str, directory: Path, patience: Patience) -> int:
    """Run the scenario into `directory`; returns the exit code. Raises `ExperimentError`."""
    require_live(scenario)
    console = console_here()
    campaign = campaigns.prepare(scenario, command, directory)
    console.print(Text(scenario.question, style="bold"))
    console.print(path_line(f"{len(campaign.plan)} runs into", directory))
    try:
        with Progress(campaign, console) as progress:
            run_loop(carried_out(campaign, directory, progress, patience))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return stopped(directory, console)
    except ExperimentError:
        if any((directory / RUNS).iterdir()):
            present(directory, console)
        raise
    return present(directory, console)


async def carried_out(
    campaign: Campaign, directory: Path, progress: Progress, patience: Patience | None = None
) -> None:
    """Run the campaign as a task that Ctrl-C and SIGTERM cancel, so that every fleet is stopped in order."""
    await interruptible(campaigns.carry_out(campaign, directory, progress, patience))


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where available, so that the load generator is as fast as the proxy."""
    if sys.platform == "win32":
        asyncio.run(main)
    else:
        import uvloop

        uvloop.run(main)


def stopped(directory: Path, console: Console) -> int:
    """Report the measured runs after Ctrl-C; returns the exit code."""
    print_stopped(console, "Nothing was left running; what had been measured is reported on.")
    if any((directory / RUNS).iterdir()):
        present(directory, console)
    return STOPPED


def present(directory: Path, console: Console) -> int:
    """Write the report and print its main results; returns 1 when a threshold failed, else 0."""
    with console.status("Drawing the report"):
        summary = write_report(directory)
    console.print(terminal_table(statistics_table(summary), console.width))
    mark = "" if summary.world == "measured" else "Simulated. "
    console.print(Text(f"{mark}{summary.verdict.headline}.", style="bold"))
    for sentence in summary.verdict.sentences:
        console.print(Text(sentence))
    complain(summary, console)
    console.print(path_line("Report:", directory / "report.html"), soft_wrap=True)
    return 1 if summary.failed_thresholds else 0


def complain(summary: Summary, console: Console) -> None:
    """Print invalid runs and failed thresholds."""
    for line in invalid_lines(summary):
        console.print(Text(f"INVALID  {line}", style="bold red"))
    for judgement in summary.failed_thresholds:
        text = f"THRESHOLD FAILED  {judgement.label}: {judgement.threshold} ({judgement.message})"
        console.print(Text(text, style="bold red"))


def terminal_table(table: Table, width: int, essential: Sequence[str] = ESSENTIAL) -> RichTable:
    """The report's table for the terminal; a narrow terminal gets the essential columns only."""
    made = RichTable(caption="latency in ms", header_style="dim", box=SIMPLE_HEAD, pad_edge=False)
    shown = [index for index, name in enumerate(table.columns) if width >= FULL_WIDTH or name in essential]
    for index in shown:
        made.add_column(table.columns[index], justify="right" if index else "left", no_wrap=True)
    for row in table.rows:
        made.add_row(*(terminal_cell(row[index]) for index in shown))
    return made


def terminal_cell(cell: Cell) -> Text:
    """Table cell with its mark as a style."""
    return Text(cell.text, style=STYLES[cell.mark])
