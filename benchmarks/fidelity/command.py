"""`python -m benchmarks fidelity`: measure and simulate the same scenarios, and write a page of the differences.

Only parses options and prints; the page is made from the files of the results directory.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from benchmarks.harness.options import names_in
from experiments.commands.options import PATIENCE
from experiments.terminal import BOUND_MISSED, STOPPED, console_here, duration, print_stopped, print_verdict

EPILOG = """\b
Examples:
  python -m benchmarks fidelity                     six scenarios, five policies, four blocks: two hours
  python -m benchmarks fidelity --quick             one short block of each: nothing to believe, in eight minutes
  python -m benchmarks fidelity --scenarios gc-pauses,bursts --policies random,prequal --blocks 8
  python -m benchmarks fidelity --out results/fidelity  goes on where it was stopped; simulates everything anew
  python -m benchmarks fidelity --out results/fidelity --mend  measures again what came out invalid
  python -m benchmarks fidelity --out results/fidelity --mend --patience 4m   and waits for a quiet machine
  python -m benchmarks fidelity --out results/fidelity --redraw  only the page, from the files
"""


@click.command(epilog=EPILOG)
@click.option(
    "--scenarios", default="", metavar="A,B,…", help="Names from `experiments list`.  [default: six]"
)
@click.option("--policies", default="", metavar="A,B,…", help="Policies or entries.  [default: five]")
@click.option("--blocks", type=click.IntRange(min=1), help="How often every entry is measured.  [default: 4]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory for the results, new or of a sitting before.",
)
@click.option(
    "--time-scale",
    type=click.FloatRange(min=0, min_open=True, max=10),
    help="Seconds that 1 s takes: 4 lets a busy machine's milliseconds weigh a quarter.",
)
@click.option("--quick", is_flag=True, help="One short block: an impression, and for tests.")
@click.option("--mend", is_flag=True, help="Measure again what came out invalid.")
@PATIENCE
@click.option(
    "--redraw", is_flag=True, help="Neither measure nor simulate: the page from the files of --out."
)
@click.option("--check", is_flag=True, help="Exit code 1 when a figure is missed.")
def fidelity(
    scenarios: str,
    policies: str,
    blocks: int | None,
    out: Path | None,
    time_scale: float | None,
    quick: bool,
    mend: bool,
    patience: str | None,
    redraw: bool,
    check: bool,
) -> int:
    """Measure scenarios on real processes, simulate them, and show where the two differ."""
    if redraw and out is None:
        raise click.UsageError("--redraw: name the directory with --out")
    if quick and blocks is not None:
        raise click.UsageError("--quick and --blocks: a quick sitting has one block")
    console = console_here()
    directory = out or Path("results") / f"worlds-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    if not redraw:
        # These imports and those of the figures take half a second, which `--help` does not need.
        from benchmarks.fidelity.session import SCENARIOS, Session, known_policies, run_session, scenario_of
        from experiments.simulator.run import simulate_emulated

        chosen = names_in(policies) or list(known_policies())
        made = [
            scenario_of(name, chosen, blocks, quick, time_scale) for name in names_in(scenarios) or SCENARIOS
        ]
        seconds = 0.0 if patience is None else duration("--patience", patience)
        command = shlex.join(["experiments", *sys.argv[1:]])
        try:
            run_session(Session(tuple(made), directory, command, mend, seconds), console, simulate_emulated)
        except (asyncio.CancelledError, KeyboardInterrupt):
            print_stopped(console, "Nothing was left running; the same --out goes on from here.")
            return STOPPED
    return present(directory, console, check)


def present(directory: Path, console: Console, check: bool) -> int:
    """Write the page and print its verdicts; returns the exit code."""
    from benchmarks.fidelity.page import write_page
    from benchmarks.fidelity.tables import every_verdict, headline, lines_of

    with console.status("Drawing the page"):
        scenario_results = write_page(directory)
    for is_met, line in lines_of(scenario_results):
        print_verdict(console, is_met, line)
    console.print(Text(f"{headline(scenario_results)}.", style="bold"))
    console.print(f"Page: {directory / 'worlds.html'}", highlight=False, soft_wrap=True)
    return BOUND_MISSED if check and False in every_verdict(scenario_results) else 0
