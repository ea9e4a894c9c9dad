"""`experiments run`, `report`, `list` and more: ask a question, write files, draw.

Rules of this file: bad input is one line on standard error that names the option or field and what is allowed,
exit 2. Exit codes: 0 all well, 1 a threshold failed, 2 bad input, 3 the fleet failed, 130 stopped by the user.
"""

from __future__ import annotations

import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from experiments.bench.command import bench
from experiments.campaign.overrides import Overrides, overridden
from experiments.campaign.playable import complaints
from experiments.campaign.scenario import Scenario
from experiments.campaign.shelf import DEFAULT, grouped, load_scenario, packaged
from experiments.campaign.shelf import DEFAULT, load_scenario, packaged
from experiments.capacity.command import capacity
from experiments.capacity.load_command import load
from experiments.compare.command import compare
from experiments.errors import BadInputError, ExperimentError
from experiments.log.command import from_log
from experiments.reproduce.command import reproduce
from experiments.rolling.command import rolling
from experiments.scaling.command import processes
from experiments.shares.command import shares
from experiments.slow.command import slow_clients
from experiments.storm.command import storm
from experiments.worlds.command import worlds
from experiments.verdicts.command import verdicts

EPILOG = """\b
Examples:
  experiments run --quick                       the default scenario in about a minute
  experiments run --policies random,region-aware --blocks 8
  experiments run steady --rate 120 --duration 20
  experiments run my-scenario.toml --out results/first
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
@click.option(
    "--policies", metavar="A,B,…", help="Only these entries, by label or policy name; or any policy."
)
@click.option("--requests", type=click.IntRange(min=1), help="Requests per run, closed loop.")
@click.option("--batch", type=click.IntRange(min=1), help="Requests kept outstanding, closed loop.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Requests per second, open loop.")
@click.option("--duration", type=click.FloatRange(min=0, min_open=True), help="Seconds per run, open loop.")
@click.option("--blocks", type=click.IntRange(min=1), help="How often every entry is run; 8 give a verdict.")
@click.option("--seed", type=click.IntRange(min=0), help="Of order, arrivals, demand and policies.")
@click.option(
    "--time-scale",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that 1 s of the scenario takes.",
)
@click.option("--out", type=click.Path(path_type=Path), help="A new directory for results.")
@click.option("--quick", is_flag=True, help="One block and few requests: an impression, not a verdict.")
def run(scenario: str, policies: str | None, out: Path | None, **options: Any) -> int:
    """Run SCENARIO (default: regions), a name from `experiments list` or a TOML file."""
    from experiments.campaign.session import conduct

    wanted = tuple(name.strip() for name in (policies or "").split(",") if name.strip())
    if policies is not None and not wanted:
        raise BadInputError("--policies: name at least one, separated by commas")
    chosen = overridden(load_scenario(scenario), Overrides(policies=wanted, **options))
    command = shlex.join(["experiments", *sys.argv[1:]])
    return conduct(chosen, command, out or default_directory(chosen))


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path))
def report(directory: Path) -> int:
    """Redraw every output of a results DIRECTORY from its files alone."""
    from experiments.campaign.session import present
    from experiments.capacity.load_command import is_curve, present_curve

    if is_curve(directory):
        present_curve(directory, Console())
        return 0
    return present(directory, Console())


@cli.command(name="list")
def list_() -> None:
    """Show the scenarios that come with the package."""
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
cli.add_command(storm)
cli.add_command(rolling)
cli.add_command(shares)
cli.add_command(processes)
cli.add_command(reproduce)
cli.add_command(worlds)
cli.add_command(verdicts)
cli.add_command(compare)
cli.add_command(capacity)
cli.add_command(load)


def default_directory(scenario: Scenario) -> Path:
    """`results/regions-20260101-120000`, local time, for people who look for it an hour later."""
    return Path("results") / f"{scenario.name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


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
    click.echo(f"experiments: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    main()
