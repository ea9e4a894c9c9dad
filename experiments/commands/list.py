"""The command `experiments list`: packaged scenarios, or the grids of a catalogue."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.scenario.files import DEFAULT, grouped, packaged
from experiments.scenario.supported import complaints

EPILOG = """\b
Examples:
  experiments list results/first.sqlite         the grids of a sweep
"""


@click.command(name="list", epilog=EPILOG)
@click.argument("catalogue", required=False, type=click.Path(path_type=Path))
def list_(catalogue: Path | None) -> None:
    """List the packaged scenarios, or with the CATALOGUE of a sweep, the grids in it."""
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
    click.echo("drawn at random")
    click.echo(
        f"  {'random-SEED':<{width}}  Which policy is best in a scenario that SEED, a number, decides?"
    )


def list_grids(file: Path) -> None:
    """Print the grids in a catalogue."""
    from experiments.platform.terminal import console_here
    from experiments.report.terminal_tables import whole_table
    from experiments.sweep.catalogue import to_read
    from experiments.sweep.tables import grid_table

    with to_read(file) as opened:
        console_here().print(whole_table(grid_table(opened.grids())))
