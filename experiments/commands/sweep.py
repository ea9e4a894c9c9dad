"""The command `experiments sweep`: every policy under every scenario, knob and seed of a grid, into a catalogue.

Dask is not imported before a sweep begins.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path

import click
from rich.console import Console

from experiments.sweep.grid import Grid, load_grid

EPILOG = """\b
Examples:
  experiments sweep grid.toml                   into results/<name of the grid>.sqlite, a process per processor
  experiments sweep grid.toml --dry-run         how many cells that would be
  experiments sweep grid.toml --out all.sqlite --keep-samples
  experiments sweep grid.toml --scheduler tcp://10.0.0.1:8786
  experiments catalogue report results/first.sqlite

\b
A grid:
  name = "first"
  scenarios = ["steady", "my-scenario.toml"]
  policies = ["random", { label = "best of three", policy = { name = "least-in-flight", choices = 3 } }]
  seeds = 20
  [knobs]
  load.rate = [120, 150, 180]
"""


@click.command(epilog=EPILOG)
@click.argument("grid", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The catalogue; made if absent, else continued.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; as many as processors if not given.")
@click.option("--scheduler", metavar="ADDRESS", help="Of a Dask cluster that runs already: tcp://host:8786.")
@click.option("--keep-samples", is_flag=True, help="Keep every request of every cell, compressed.")
@click.option("--dry-run", is_flag=True, help="Only count the cells.")
def sweep(
    grid: Path,
    out: Path | None,
    workers: int | None,
    scheduler: str | None,
    keep_samples: bool,
    dry_run: bool,
) -> int:
    """Simulate every cell of GRID, a TOML file, that its catalogue does not contain yet."""
    from experiments.simulator.run import simulate
    from experiments.sweep.driver import Session, run_session
    from experiments.terminal import console_here

    if workers is not None and scheduler is not None:
        raise click.UsageError("--workers and --scheduler: a cluster that runs already has its own workers")
    chosen, console = load_grid(grid), console_here()
    if dry_run:
        return count(chosen, console)
    sitting = Session(
        command=shlex.join(["experiments", *sys.argv[1:]]),
        out=out or default_catalogue(chosen),
        scheduler=scheduler,
        workers=workers,
        keep_samples=keep_samples,
    )
    return run_session(chosen, sitting, simulate, console)


def default_catalogue(grid: Grid) -> Path:
    """Default catalogue path, derived from the grid's name so that repeating the command resumes the sweep."""
    return Path("results") / f"{grid.name}.sqlite"


def count(grid: Grid, console: Console) -> int:
    """Print the number of cells and requests of the sweep."""
    from experiments.sweep.cells import cells_of

    cells = cells_of(grid, code="")
    scenarios = Counter(cell.scenario.name for cell in cells)
    policies = Counter(cell.entry.label for cell in cells)
    requests = sum(cell.size for cell in cells)
    console.print(
        f"{len(cells)} cells: {len(scenarios)} scenarios, {len(policies)} policies, {len(grid.seeds)} seeds, "
        f"{len(grid.knobs)} knobs; {requests:,} requests",
        highlight=False,
    )
    return 0
