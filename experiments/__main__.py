"""`experiments run`, `report`, `list` and more: ask a question, write files, draw.

Rules of this file: bad input is one line on standard error that names the option or field and what is allowed,
exit 2. Exit codes: 0 all well, 1 a threshold failed, 2 bad input, 3 the fleet failed, 130 stopped by the user.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from experiments.bench.command import bench
from experiments.campaign.options import PATIENCE, campaign_options, chosen_scenario, default_directory
from experiments.campaign.playable import complaints
from experiments.campaign.shelf import DEFAULT, grouped, packaged
from experiments.capacity.command import capacity
from experiments.capacity.load_command import load
from experiments.compare.command import compare
from experiments.errors import ExperimentError
from experiments.live.command import live
from experiments.log.command import from_log
from experiments.printable import one_line
from experiments.record.command import what_if
from experiments.reproduce.command import reproduce
from experiments.rolling.command import rolling
from experiments.scaling.command import processes
from experiments.shares.command import shares
from experiments.simulator.command import simulate
from experiments.slow.command import slow_clients
from experiments.storm.command import storm
from experiments.sweep.command import sweep
from experiments.sweep.reading import catalogue, list_grids, matrix, write_report
from experiments.verdicts.command import verdicts
from experiments.worlds.command import worlds

EPILOG = """\b
Examples:
  experiments run --quick                       the default scenario in about a minute
  experiments run --policies random,region-aware --blocks 8
  experiments run steady --rate 120 --duration 20
  experiments run my-scenario.toml --out results/first
  experiments run steady --patience 4m          on a machine that others use too
  experiments simulate steady --blocks 20       the same in virtual time
  experiments report results/first              redraw from files alone
  experiments compare results/first results/second
"""
STOPPED = 130
THRESHOLD_FAILED = 1


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Ask which routing policy to run, on a running system, and draw the answer."""


@cli.command(epilog=EPILOG)
@click.argument("scenario", default=DEFAULT)
@campaign_options
@PATIENCE
def run(scenario: str, policies: str | None, out: Path | None, patience: str | None, **options: Any) -> int:
    """Run SCENARIO (default: regions), a name from `experiments list` or a TOML file."""
    from experiments.campaign.patience import Patience
    from experiments.campaign.session import conduct
    from experiments.terminal import duration

    seconds = 0.0 if patience is None else duration("--patience", patience)
    chosen = chosen_scenario(scenario, policies, options)
    command = shlex.join(["experiments", *sys.argv[1:]])
    return conduct(chosen, command, out or default_directory(chosen), Patience(seconds))


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path))
def report(directory: Path) -> int:
    """Redraw every output of a results DIRECTORY, or of a sweep's catalogue, from its files alone."""
    from experiments.campaign.session import present
    from experiments.capacity.load_command import is_curve, present_curve
    from experiments.terminal import console_here

    if directory.is_file():
        return write_report(directory)
    if is_curve(directory):
        present_curve(directory, console_here())
        return 0
    return present(directory, console_here())


@cli.command(name="list")
@click.argument("catalogue", required=False, type=click.Path(path_type=Path))
def list_(catalogue: Path | None) -> None:
    """Show the scenarios that come with the package; with the CATALOGUE of a sweep, the grids in it."""
    if catalogue is not None:
        list_grids(catalogue)
        return
    width = max(map(len, packaged()))
    for group, scenarios in grouped().items():
        click.echo(f"{group}")
        for scenario in scenarios:
            mark = " (default)" if scenario.name == DEFAULT else ""
            mark += " (simulated only)" if any(complaints(scenario)) else ""
            click.echo(f"  {scenario.name:<{width}}  {scenario.question}{mark}")


# Further commands of this room are registered here: cli.add_command(…)
cli.add_command(bench)
cli.add_command(slow_clients)
cli.add_command(from_log)
cli.add_command(live)
cli.add_command(what_if)
cli.add_command(storm)
cli.add_command(rolling)
cli.add_command(shares)
cli.add_command(processes)
cli.add_command(reproduce)
cli.add_command(simulate)
cli.add_command(worlds)
cli.add_command(verdicts)
cli.add_command(compare)
cli.add_command(capacity)
cli.add_command(load)
cli.add_command(sweep)
cli.add_command(catalogue)
cli.add_command(matrix)


def main() -> None:
    """The console script."""
    try:
        code = cli.main(prog_name="experiments", standalone_mode=False)
    except click.ClickException as error:
        code = complain(error.format_message(), error.exit_code)
    except ExperimentError as error:
        code = complain(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = STOPPED
    sys.exit(code or 0)


def complain(message: str, code: int) -> int:
    """One line on standard error, whatever the message was."""
    click.echo(f"experiments: {one_line(message)}", err=True)
    return code


if __name__ == "__main__":
    main()
