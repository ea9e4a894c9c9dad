"""The command `experiments sweep`: every policy under every scenario, knob and seed of a grid, into a catalogue.

Without a grid file, the grid is the policy matrix: every packaged scenario × every registered policy.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from experiments.commands.options import PARQUET, command_line, named, require_none
from experiments.sweep.grid import EVERYTHING, OURS, Grid, checked_grid, load_grid
from policies import registry
from policies.loading.reference import located_here

EPILOG = """\b
Examples:
  experiments sweep --quick                     the policy matrix, an impression: short runs, two seeds
  experiments sweep                             every scenario × every policy × 20 seeds
  experiments sweep --policies random,least-in-flight --seeds 8 --out results/two.sqlite
  experiments sweep --scenarios random-1..20    scenarios drawn at random, see docs/scenarios.md
  experiments sweep grid.toml                   into results/<name of the grid>.sqlite, a process per processor
  experiments sweep grid.toml --dry-run         how many cells that would be
  experiments sweep grid.toml --out all.sqlite --keep-samples
  experiments sweep grid.toml --scheduler tcp://10.0.0.1:8786
  experiments report results/first.sqlite

\b
A grid:
  name = "first"
  scenarios = ["steady", "my-scenario.toml"]
  policies = ["random", { label = "best of three", policy = { name = "least-in-flight", choices = 3 } }]
  seeds = 20
  [knobs]
  load.rate = [120, 150, 180]
"""
SEEDS, QUICK_SEEDS = 20, 2
"""Seeds of the policy matrix: for a verdict, and with `--quick`."""


@click.command(epilog=EPILOG)
@click.argument("grid", required=False, type=click.Path(path_type=Path))
@click.option("--scenarios", metavar="A,B,…", help="Without GRID: only these.  [default: every packaged one]")
@click.option(
    "--policies", metavar="A,B,…", help="Without GRID: only these.  [default: every registered one]"
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help=f"Without GRID: how many.  [default: {SEEDS}, quick {QUICK_SEEDS}]",
)
@click.option(
    "--quick", is_flag=True, help="Without GRID: short runs and few seeds, an impression, not a verdict."
)
@click.option("--out", type=click.Path(path_type=Path), help="The catalogue; made if absent, else continued.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; as many as processors if not given.")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Address of a Dask cluster that runs already: tcp://host:8786."
)
@click.option("--keep-samples", is_flag=True, help="Keep every request of every cell, compressed.")
@PARQUET
@click.option("--dry-run", is_flag=True, help="Only count the cells.")
def sweep(
    grid: Path | None,
    scenarios: str | None,
    policies: str | None,
    seeds: int | None,
    quick: bool,
    out: Path | None,
    workers: int | None,
    scheduler: str | None,
    keep_samples: bool,
    parquet: bool,
    dry_run: bool,
) -> int:
    """Simulate every cell of GRID, a TOML file, that its catalogue does not contain yet.

    Without GRID, every scenario × every policy; then the report is drawn too: how far each policy is from the best.
    """
    from experiments.commands.report import report_catalogue
    from experiments.inference.run import simulate
    from experiments.platform.terminal import console_here
    from experiments.sweep.driver import FAILED, SweepOptions, run_sweep

    if workers is not None and scheduler is not None:
        raise click.UsageError("--workers and --scheduler: a cluster that runs already has its own workers")
    if grid is None:
        chosen = matrix_grid(scenarios, policies, seeds, quick)
    else:
        own = {
            "scenarios": scenarios,
            "policies": policies,
            "seeds": seeds,
            "quick": quick,
            "parquet": parquet,
        }
        require_none(own, "only without GRID, which states it itself")
        chosen = load_grid(grid)
    console = console_here()
    for error in registry.broken().values() if grid is None and policies is None else ():
        console.print(Text(f"Left out: {error}", style="yellow"), soft_wrap=True)
    if dry_run:
        return count(chosen, console)
    options = SweepOptions(
        command=command_line(),
        out=out or Path("results") / f"{chosen.name}.sqlite",  # the same command continues the sweep
        scheduler=scheduler,
        workers=workers,
        keep_samples=keep_samples,
    )
    code = run_sweep(chosen, options, simulate, console)
    if grid is None and code in (0, FAILED):
        return report_catalogue(options.out, grid=chosen.name, parquet=parquet) or code
    return code


def matrix_grid(scenarios: str | None, policies: str | None, seeds: int | None, quick: bool) -> Grid:
    """Grid of the policy matrix. Raises `BadInputError`."""
    raw = {
        "name": "matrix-quick" if quick else "matrix",
        "question": "Which policy is best where, and how far from the best are the others?",
        "scenarios": named(scenarios, "--scenarios") or EVERYTHING,
        "policies": located_here(named(policies)) or EVERYTHING,
        "seeds": seeds or (QUICK_SEEDS if quick else SEEDS),
        "quick": quick,
        "ours": OURS,
    }
    return checked_grid(raw, "sweep")


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
