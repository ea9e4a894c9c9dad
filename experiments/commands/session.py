"""Execution of a campaign at the terminal: progress, report, main results, exit code.

However the campaign ends, the finished runs are on disk and are reported.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from experiments.commands.options import command_line
from experiments.errors import STOPPED, BadInputError, ExperimentError
from experiments.platform.checks import Check, report_checks
from experiments.platform.terminal import clock, console_here, print_stopped
from experiments.recorded.instants import failed_in
from experiments.report.entry_tables import statistics_table, token_table
from experiments.report.pages import invalid_lines, write_report
from experiments.report.tables import terminal_table, whole_table
from experiments.results.directory import CAMPAIGN_FILE, RUNS, Campaign, PlannedRun
from experiments.run_data import Run
from experiments.running.execute import execute, prepare
from experiments.running.patience import Patience
from experiments.running.progress import CampaignProgress, remaining
from experiments.running.runner import Observer, Observers, Runner
from experiments.scenario.scenario import Scenario
from experiments.scenario.service import LiveScenario
from experiments.scenario.supported import doubts_about_keys
from experiments.scenario.thresholds import parse_threshold
from experiments.stats.run_summary import RunSummary, summarise_run
from experiments.verdict.contest import contest_of
from experiments.verdict.disturbed import repetitions, was_late
from experiments.verdict.evidence import evidence
from experiments.verdict.summary import Summary, invalid_advice
from experiments.verdict.verdict import conclude, number_of

if TYPE_CHECKING:
    from experiments.live_page.process import LivePage


def runner_of(is_simulated: bool, page: LivePage | None = None) -> Runner:
    """The simulator, or measurement on real processes, shown on `page`; only the chosen one is imported."""
    if is_simulated:
        from experiments.inference.run import SimulatedRunner

        return SimulatedRunner()
    from experiments.measured.runner import MeasuredRunner

    return MeasuredRunner() if page is None else MeasuredRunner(page.following)


def run_campaign(
    scenario: Scenario,
    directory: Path,
    runner: Runner,
    patience: float = 0.0,
    during: AbstractContextManager[None] | None = None,
    command: str | None = None,
    parquet: bool = False,
    page: LivePage | None = None,
    note: str = "",
    junit: Path | None = None,
    otlp: str | None = None,
) -> int:
    """Run the scenario into `directory`; returns the exit code. Raises `ExperimentError`.

    `patience` is in seconds for each run. `during` is left before the report is drawn. `command` repeats the campaign,
    where the command line must not be kept as it is. With `parquet`, tables and requests are written as Parquet too.
    Progress and verdict are shown on `page`. `note` is printed below the question. The outcome of thresholds is written
    to `junit`, live figures go to the collector at `otlp`.
    """
    require_thresholds(scenario, junit)
    console = console_here()
    campaign = prepare(scenario, command or command_line(), directory, runner.name)
    console.print(Text(scenario.question, style="bold"))
    if note:
        console.print(Text(note))
    if scenario.load.file and (failed := failed_in(scenario.load.file)):
        console.print(Text(f"{scenario.load.file}: {failed} of its lines left out: failed, or no prompt"))
    for line in doubts_about_keys(scenario.without_keys(runner.name == "simulated")):
        console.print(Text(line, style="yellow"))
    where = " in virtual time" if runner.name == "simulated" else ""
    count = len(campaign.plan)
    lasts = "" if where else f", about {clock(remaining(campaign, {}, 0.0))},"
    console.print(Text(f"{count} run{'s' * (count != 1)}{where}{lasts} into {directory}"))
    try:
        with during or nullcontext(), ExitStack() as stack:
            observers: list[Observer] = [stack.enter_context(CampaignProgress(campaign, console))]
            if page is not None:
                from experiments.live_page.process import CampaignOnPage

                observers.append(CampaignOnPage(page, campaign))
            if isinstance(scenario, LiveScenario):
                observers.append(VerdictSoFar(campaign, console))
            if otlp is not None:
                from experiments.running.otlp import exported

                warn = partial(console.print, style="yellow", markup=False, highlight=False)
                observers.append(stack.enter_context(exported(otlp, campaign, warn)))
            execute(campaign, directory, runner, Observers(observers), Patience(patience))
    except KeyboardInterrupt:
        print_stopped(console, "Nothing was left running; the finished runs are reported.")
        if has_runs(directory):
            present(directory, console, parquet, page, junit)
        return STOPPED
    except ExperimentError as error:
        if has_runs(directory):
            with suppress(ExperimentError):  # on a full disk, for one; it is said already
                present(directory, console, parquet, page, junit)
        elif isinstance(error, BadInputError):
            with suppress(OSError):  # the mended command can have the directory, unless it has other files
                (directory / RUNS).rmdir()
                (directory / CAMPAIGN_FILE).unlink()
                directory.rmdir()
        raise
    return present(directory, console, parquet, page, junit)


def require_thresholds(scenario: Scenario, junit: Path | None) -> None:
    """Check before a campaign that its thresholds can be written to `junit`. Raises `BadInputError`."""
    if junit is not None and not any((scenario.thresholds, *(one.thresholds for one in scenario.entries))):
        raise BadInputError(
            "--junit: there is no threshold; --threshold or `thresholds` of a scenario has some"
        )


def checks_of(summary: Summary) -> list[Check]:
    """Thresholds of all entries; those of an entry without a run are not judged."""
    scenario, judged = summary.scenario, {one.label for one in summary.entries}
    found = [Check(one.label, one.threshold, one.passed, one.message) for one in summary.thresholds]
    return found + [
        Check(entry.label, parse_threshold(text).text, None, "no run")
        for entry in scenario.entries
        if entry.label not in judged
        for text in (*scenario.thresholds, *entry.thresholds)
    ]


class VerdictSoFar(Observer):
    """Observer that prints each new winner after a block.

    For campaigns whose intervals hold at every look, which may be stopped as soon as they have a winner.
    """

    def __init__(self, campaign: Campaign, console: Console) -> None:
        self._campaign, self._console = campaign, console
        self._runs: list[RunSummary] = []
        self._winner: str | None = None

    def run_ended(self, planned: PlannedRun, run: Run) -> None:
        """Look at the verdict after the last run of a block."""
        scenario = self._campaign.scenario
        self._runs.append(summarise_run(run, scenario.measured_slo))
        if planned.order + 1 < len(scenario.entries):
            return
        contest = contest_of(scenario, self._campaign.world, self._runs)
        verdict = conclude(evidence(contest, self._runs))
        if verdict.winner not in (None, self._winner):
            blocks = number_of(planned.block + 1, "block", "blocks")
            self._console.print(f"after {blocks}: {verdict.headline}.", highlight=False)
        self._winner = verdict.winner


def has_runs(directory: Path) -> bool:
    return any((directory / RUNS).glob("*.npz"))


def present(
    directory: Path,
    console: Console,
    parquet: bool = False,
    page: LivePage | None = None,
    junit: Path | None = None,
    out: Path | None = None,
) -> int:
    """Write the report, into `out` if given, and print its main results; returns 1 with unmet thresholds, else 0."""
    with console.status("Drawing the report"):
        summary = write_report(directory, parquet, out)
    if page is not None:
        stopped = "Stopped. " * bool(summary.missing_runs)
        page.note(summary.scenario.name, f"{stopped}{summary.verdict.headline}.")
    print_summary(summary, console)
    console.print(Text(f"Report: {(out or directory) / 'report.html'}"), soft_wrap=True)
    report_checks(summary.scenario.name, checks_of(summary), junit)
    return 1 if summary.unmet_thresholds else 0


def remedies(summary: Summary) -> list[str]:
    """Why runs are invalid and what helps, unless the verdict's advice says so."""
    advice = invalid_advice(summary)
    return [advice] if advice and advice != summary.verdict.advice else []


def print_summary(summary: Summary, console: Console) -> None:
    """Print the statistics, the verdict, missing, invalid and repeated runs and thresholds that are not met."""
    console.print(terminal_table(statistics_table(summary), console.width))
    if table := token_table(summary):
        console.print(whole_table(table))
    mark = "" if summary.world == "measured" else "Simulated. "
    console.print(Text(f"{mark}{summary.verdict.headline}.", style="bold"))
    for sentence in (*summary.verdict.lines, *summary.verdict.details):
        console.print(Text(sentence))
    if summary.missing_runs:
        console.print(Text(f"INCOMPLETE  {summary.missing_runs} planned runs are missing", style="yellow"))
    for line in invalid_lines([run for run in summary.runs if not was_late(run)]):
        console.print(Text(f"INVALID  {line}", style="bold red"))
    for line in repetitions((*summary.runs, *summary.set_aside)):
        console.print(Text(f"SET ASIDE  {line}" if line.startswith("block") else line, style="yellow"))
    for line in remedies(summary):
        console.print(Text(line, style="yellow"))
    for judgement in summary.unmet_thresholds:
        outcome = "NOT JUDGED" if judgement.passed is None else "FAILED"
        text = f"THRESHOLD {outcome}  {judgement.label}: {judgement.threshold} ({judgement.message})"
        console.print(Text(text, style="bold red"))
