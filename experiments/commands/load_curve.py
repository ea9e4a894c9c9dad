"""`experiments load`: latency against offered rate for every policy of a scenario.

Each rate is a campaign in a directory of its own; the curve is drawn from those directories alone.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from experiments.run import execute as campaigns
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.supported import require_live
from experiments.run.progress import Progress
from experiments.results.directory import Campaign, save_result
from experiments.scenario.scenario import Scenario
from experiments.commands.session import carried_out, run_loop, terminal_table
from experiments.scenario.files import load_scenario
from experiments.run.world import simulated as simulate
from experiments.capacity.offered import at_rate, pooled
from experiments.errors import BadInputError
from experiments.stats.samples import WorldName
from experiments.terminal import STOPPED, console_here, print_stopped

EPILOG = """\b
Examples:
  experiments load steady --simulated
  experiments load steady --policies round-robin,region-aware --rates 60,120,180,240 --blocks 4
  experiments load steady --simulated --rates 50%,70%,90%,95%,105% --duration 120 --out results/curve
A rate in % is of what all workers together can serve.
"""

ESSENTIAL = ("entry", "offered /s", "answered /s", "p99 ms [95 %]", "")
"""Columns shown on a narrow terminal."""

RATES = "20%,40%,60%,70%,80%,90%,95%,105%"


@click.command(epilog=EPILOG)
@click.argument("scenario")
@click.option("--rates", default=RATES, show_default=True, metavar="R,S,…", help="Per second, or in %.")
@click.option(
    "--policies", metavar="A,B,…", help="Only these entries, by label or policy name; or any policy."
)
@click.option("--simulated", is_flag=True, help="In virtual time, not on real processes.")
@click.option("--duration", type=click.FloatRange(min=0, min_open=True), help="Seconds of arrivals per run.")
@click.option(
    "--blocks", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each at each rate."
)
@click.option("--seed", type=click.IntRange(min=0), help="Of order, arrivals, demand and policies.")
@click.option("--out", type=click.Path(path_type=Path), help="A new directory for results.")
def load(
    scenario: str,
    rates: str,
    policies: str | None,
    simulated: bool,
    duration: float | None,
    blocks: int,
    seed: int | None,
    out: Path | None,
) -> int:
    """Run SCENARIO at one rate after another, and draw p99 against load with the knee of each policy."""
    names = tuple(name.strip() for name in (policies or "").split(",") if name.strip())
    chosen = overridden(load_scenario(scenario), Overrides(policies=names, seed=seed, blocks=blocks))
    if not simulated:
        require_live(chosen)
    steps = [at_rate(chosen, rate, duration) for rate in rates_in(rates, pooled(chosen))]
    directory = out or Path("results") / f"{chosen.name}-load-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    console = console_here()
    was_stopped = run_session(steps, directory, simulated, console)
    if is_curve(directory):
        present_curve(directory, console)
    return STOPPED if was_stopped else 0


def rates_in(text: str, whole: float) -> list[float]:
    """Ascending rates per second; `70%` is of `whole`. Raises `BadInputError`."""
    try:
        found = [rate_in(part.strip(), whole) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) <= 0 or len(set(found)) < len(found):
        raise BadInputError(f"--rates: {text!r}: positive rates like 60,120 or 50%,90%, each once")
    return sorted(found)


def rate_in(part: str, whole: float) -> float:
    """Parse one rate. Raises `ValueError`."""
    return float(part[:-1]) / 100 * whole if part.endswith("%") else float(part)


def run_session(steps: Sequence[Scenario], directory: Path, is_simulated: bool, console: Console) -> bool:
    """Run a campaign for each rate; returns whether it was interrupted. Raises `ExperimentError`."""
    command = shlex.join(["experiments", *sys.argv[1:]])
    for number, scenario in enumerate(steps, 1):
        folder = directory / f"rate-{number:02d}"
        console.print(Text(f"{scenario.load.rate:.4g}/s, rate {number} of {len(steps)}", style="bold"))
        world: World = "simulated" if is_simulated else "measured"
        campaign = campaigns.prepare(scenario, command, folder, world)
        try:
            (simulate_all if is_simulated else measure_all)(campaign, folder, console)
        except (asyncio.CancelledError, KeyboardInterrupt):
            print_stopped(console, "Nothing was left running.")
            return True
    return False


def measure_all(campaign: Campaign, folder: Path, console: Console) -> None:
    """Measure a campaign on real processes with the progress panel."""
    with Progress(campaign, console) as progress:
        run_loop(carried_out(campaign, folder, progress))


def simulate_all(campaign: Campaign, folder: Path, console: Console) -> None:
    """Simulate a campaign in virtual time."""
    entries = {entry.label: entry for entry in campaign.scenario.entries}
    with console.status("simulating") as status:
        for number, planned in enumerate(campaign.plan, 1):
            status.update(f"simulating {planned.label}, run {number} of {len(campaign.plan)}")
            entry = entries[planned.label]
            run = simulate(campaign.scenario, entry, planned.block, planned.order, planned.seed)
            save_result(run, planned, folder)


def is_curve(directory: Path) -> bool:
    """Whether the directory has results of any rate."""
    return any(directory.glob("rate-*/runs/*.npz"))


def present_curve(directory: Path, console: Console) -> None:
    """Write the report and print its table and the knees."""
    from experiments.capacity.curve_page import load_table, write_load_report  # matplotlib takes half a second

    with console.status("Drawing the report"):
        curve = write_load_report(directory)
    console.print(terminal_table(load_table(curve), console.width, ESSENTIAL))
    for label in curve.labels:
        knee = curve.knee(label)
        words = "no knee within these rates" if knee is None else f"knee at {knee.rate:.4g}/s"
        console.print(Text(f"{label}: {words}"))
    console.print(f"Report: {directory / 'load.html'}", highlight=False, soft_wrap=True)
