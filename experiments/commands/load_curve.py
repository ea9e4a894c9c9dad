"""Load curve of `experiments capacity --curve`: latency against offered rate for every policy of a scenario.

Each rate is a campaign in a directory of its own; the curve is drawn from those directories alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from balancer.syntax.printable import with_digits
from experiments.capacity.curve import is_curve
from experiments.capacity.offered import at_rate, pooled, rates_in
from experiments.commands.options import command_line, new_directory
from experiments.commands.report import report_curve
from experiments.platform.terminal import STOPPED, console_here, print_stopped
from experiments.results.directory import require_new
from experiments.running.execute import execute, prepare
from experiments.running.progress import CampaignProgress
from experiments.running.runner import Runner
from experiments.scenario.scenario import Scenario


def measure_curve(
    scenario: Scenario, rates: str, duration: float | None, runner: Runner, out: Path | None
) -> int:
    """Run the scenario at one rate after another and draw the curve; returns the exit code.

    Raises `ExperimentError`.
    """
    steps = [at_rate(scenario, rate, duration) for rate in rates_in(rates, pooled(scenario))]
    directory = out or new_directory(f"{scenario.name}-load")
    require_new(directory)
    console = console_here()
    was_stopped = run_steps(steps, directory, runner, console)
    if is_curve(directory):
        report_curve(directory, console)
    return STOPPED if was_stopped else 0


def run_steps(steps: Sequence[Scenario], directory: Path, runner: Runner, console: Console) -> bool:
    """Run a campaign for each rate; returns whether it was interrupted. Raises `ExperimentError`."""
    for number, scenario in enumerate(steps, 1):
        folder = directory / f"rate-{number:02d}"
        console.print(
            Text(f"{with_digits(scenario.load.rate, 4)}/s, rate {number} of {len(steps)}", style="bold")
        )
        campaign = prepare(scenario, command_line(), folder, runner.name)
        try:
            with CampaignProgress(campaign, console) as progress:
                execute(campaign, folder, runner, progress)
        except KeyboardInterrupt:
            print_stopped(console, "Nothing was left running.")
            return True
    return False
