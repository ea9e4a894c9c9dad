"""The commands `experiments run`, `report` and `list`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from experiments.commands.options import PATIENCE, campaign_options, chosen_scenario, default_directory
from experiments.scenario.supported import complaints
from experiments.scenario.files import DEFAULT, grouped, packaged

EPILOG = """\b
Examples:
  experiments run --quick                       the default scenario in about a minute
  experiments run --policies random,region-aware --blocks 8
  experiments run steady --rate 120 --duration 20
  experiments run my-scenario.toml --out results/first
  experiments run steady --patience 4m          on a machine that others use too
"""


@click.command(epilog=EPILOG)
@click.argument("scenario", default=DEFAULT)
@campaign_options
@PATIENCE
def run(scenario: str, policies: str | None, out: Path | None, patience: str | None, **options: Any) -> int:
    """Run SCENARIO (default: regions): a name from `experiments list`, or a TOML file."""
    from experiments.run.patience import Patience
    from experiments.commands.session import run_session
    from experiments.terminal import duration

    seconds = 0.0 if patience is None else duration("--patience", patience)
    chosen = chosen_scenario(scenario, policies, options)
    command = shlex.join(["experiments", *sys.argv[1:]])
    return run_session(chosen, command, out or default_directory(chosen), Patience(seconds))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
def report(directory: Path) -> int:
    """Redraw every output of a results DIRECTORY, or of a sweep's catalogue, from its files alone."""
    from experiments.commands.session import present
    from experiments.commands.load_curve import is_curve, present_curve
    from experiments.commands.catalogue import write_report
    from experiments.terminal import console_here

    if directory.is_file():
        return write_report(directory)
    if is_curve(directory):
        present_curve(directory, console_here())
        return 0
    return present(directory, console_here())


@click.command(name="list")
@click.argument("catalogue", required=False, type=click.Path(path_type=Path))
def list_(catalogue: Path | None) -> None:
    """List the packaged scenarios, or with the CATALOGUE of a sweep, the grids in it."""
    from experiments.commands.catalogue import list_grids

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
