"""`python -m benchmarks fidelity`: measure and simulate the same scenarios, and write a page of the differences.

Only parses options and prints; the page is made from the files of the results directory.
"""

from __future__ import annotations

import shlex
import sys
from datetime import datetime
from pathlib import Path

import click

from benchmarks.harness.options import CHECK, QUICK, names_in
from experiments.commands.options import PATIENCE
from experiments.platform.session import Session

EPILOG = """\b
Examples:
  python -m benchmarks fidelity                     six scenarios, five policies, eight blocks: four hours
  python -m benchmarks fidelity --quick             one short block of each: an impression, eight minutes
  python -m benchmarks fidelity --scenarios gc-pauses,bursts --policies random,prequal --blocks 8
  python -m benchmarks fidelity --scenarios inference-agents --rate 4 --duration 12 --policies llm-d,pending-tokens
  python -m benchmarks fidelity --out results/fidelity  continues a stopped session; simulates everything again
  python -m benchmarks fidelity --out results/fidelity --mend  measures invalid blocks again
  python -m benchmarks fidelity --out results/fidelity --mend --patience 4m   waits for a quiet machine as well
  python -m benchmarks fidelity --out results/fidelity --redraw  only writes the page again
"""


@click.command(epilog=EPILOG)
@click.option(
    "--scenarios", default="", metavar="A,B,…", help="Names from `experiments show`.  [default: six]"
)
@click.option("--policies", default="", metavar="A,B,…", help="Policies or entries.  [default: five]")
@click.option("--blocks", type=click.IntRange(min=1), help="How often every entry is measured.  [default: 8]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the results, new or of a stopped session.",
)
@click.option(
    "--time-scale",
    type=click.FloatRange(min=0, min_open=True, max=10),
    help="Seconds that 1 s of the scenario takes: at 4, a busy machine's milliseconds weigh a quarter.",
)
@click.option("--seed", type=int, help="Of arrivals, demand and order.  [default: the scenario's]")
@click.option("--rate", type=float, help="Requests per second.  [default: the scenario's]")
@click.option("--duration", type=float, help="Seconds of arrivals in a run.  [default: the scenario's]")
@QUICK
@click.option("--mend", is_flag=True, help="Measure invalid blocks again.")
@PATIENCE
@click.option("--redraw", is_flag=True, help="Only write the page again, from the files in --out.")
@CHECK
def fidelity(
    scenarios: str,
    policies: str,
    blocks: int | None,
    out: Path | None,
    time_scale: float | None,
    seed: int | None,
    rate: float | None,
    duration: float | None,
    quick: bool,
    mend: bool,
    patience: float,
    redraw: bool,
    check: bool,
) -> int:
    """Measure scenarios on real processes, simulate them, and show where the two differ."""
    if redraw and out is None:
        raise click.UsageError("--redraw: name the directory with --out")
    if quick and blocks is not None:
        raise click.UsageError("--quick and --blocks: a quick session has one block")
    session = Session(is_checked=check)
    directory = out or Path("results") / f"worlds-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    if not redraw:
        # These imports and those of the page take half a second, which `--help` does not need.
        from benchmarks.fidelity import session as campaigns
        from experiments.inference.run import simulate_beside
        from experiments.scenario.overrides import Overrides

        chosen = names_in(policies) or list(campaigns.POLICIES)
        names = names_in(scenarios) or campaigns.SCENARIOS
        number = None if quick else blocks or campaigns.BLOCKS
        given = Overrides(
            time_scale=time_scale, seed=seed, rate=rate, duration=duration, blocks=number, quick=quick
        )
        made = tuple(campaigns.scenario_of(name, chosen, given) for name in names)
        command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
        comparison = campaigns.FidelityComparison(made, directory, command, mend, patience)
        with session.interruptible():
            campaigns.run_session(comparison, session.console, simulate_beside)
    if session.was_stopped:
        session.say("The same --out continues from here.")
        return session.conclude([])
    return present(session, directory)


def present(session: Session, directory: Path) -> int:
    """Write the page and print its verdicts; returns the exit code."""
    from benchmarks.fidelity.page import write_page
    from benchmarks.fidelity.tables import bounds_of, headline

    with session.console.status("Drawing the page"):
        results = write_page(directory)
    code = session.conclude(list(bounds_of(results)))
    session.say(f"{headline(results)}.", "bold")
    session.console.print(f"Page: {directory / 'worlds.html'}", highlight=False, soft_wrap=True)
    return code
