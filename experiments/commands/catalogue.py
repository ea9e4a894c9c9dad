"""The commands `experiments catalogue` and `experiments matrix`, which read the results of sweeps.

Readers never modify a catalogue and may run while a sweep writes to it.
"""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

import click
from rich.text import Text

from experiments.errors import BadInputError
from experiments.sweep.grid import EVERYTHING, MEASURES, OURS, checked_grid

EPILOG = """\b
Examples:
  experiments catalogue list results/first.sqlite
  experiments catalogue show results/first.sqlite
  experiments catalogue report results/first.sqlite --measure p50
  experiments catalogue report results/matrix.sqlite --measured results/steady --measured results/regions
  experiments catalogue compare before.sqlite after.sqlite
  experiments catalogue equal resumed.sqlite undisturbed.sqlite
"""
MATRIX_EPILOG = """\b
Examples:
  experiments matrix --quick                    an impression: short runs, two seeds
  experiments matrix                            every scenario × every policy × 20 seeds
  experiments matrix --policies random,least-in-flight --seeds 8 --out results/two.sqlite
"""
DIFFERENT = 1
SHOWN = 10
SEEDS, QUICK_SEEDS = 20, 2

CATALOGUE = click.Path(path_type=Path)
grid_option = click.option(
    "--grid", metavar="NAME", help="Which grid; the one that was swept last if not given."
)
measure_option = click.option(
    "--measure", type=click.Choice(MEASURES), default="p99", show_default=True, help="Of latency."
)


@click.group(epilog=EPILOG)
def catalogue() -> None:
    """Read the catalogue of a sweep."""


@catalogue.command("list")
@click.argument("file", metavar="CATALOGUE", type=CATALOGUE)
def list_(file: Path) -> int:
    """List the grids in a CATALOGUE."""
    return list_grids(file)


def list_grids(file: Path) -> int:
    """Print the grids in a catalogue."""
    from experiments.sweep.catalogue import to_read
    from experiments.sweep.tables import grid_table

    with to_read(file) as opened:
        show_table(grid_table(opened.grids()))
    return 0


@catalogue.command()
@click.argument("file", metavar="CATALOGUE", type=CATALOGUE)
@grid_option
def show(file: Path, grid: str | None) -> int:
    """Show every policy under every scenario of a CATALOGUE, and the reasons of failed cells."""
    from experiments.sweep.catalogue import to_read
    from experiments.sweep.equality import chosen_grid
    from experiments.sweep.tables import failure_table, grid_table, group_table

    with to_read(file) as opened:
        facts = chosen_grid(opened, grid)
        rows = opened.rows(facts.grid.name)
    for table in (grid_table([facts]), group_table(rows), failure_table(rows)):
        if table.rows:
            show_table(table)
    return 0


@catalogue.command()
@click.argument("file", metavar="CATALOGUE", type=CATALOGUE)
@click.option(
    "--out", type=click.Path(path_type=Path), help="A directory for the report; beside it if not given."
)
@click.option(
    "--measured",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Results of a measured campaign, to be shown below; may be repeated.",
)
@grid_option
@measure_option
def report(file: Path, out: Path | None, measured: tuple[Path, ...], grid: str | None, measure: str) -> int:
    """Draw the policy matrix of a CATALOGUE as HTML, PNG, SVG, CSV and JSON."""
    return write_report(file, out, grid, measure, measured)


def write_report(
    file: Path,
    out: Path | None = None,
    grid: str | None = None,
    measure: str = "p99",
    measured: tuple[Path, ...] = (),
) -> int:
    """Write the report and print its headline and sentences."""
    from experiments.sweep.catalogue import to_read
    from experiments.sweep.measured import measured_matrix
    from experiments.sweep.page import write_page
    from experiments.sweep.sentences import headline, is_met, sentences
    from experiments.terminal import console_here, print_verdict

    console, directory = console_here(), out or file.with_name(f"{file.stem}-report")
    with to_read(file) as opened, console.status("Drawing the report"):
        beside = measured_matrix(measured, measure) if measured else None
        facts, matrix = write_page(opened, grid, measure, directory, beside)
    print_verdict(console, is_met(matrix, facts.grid.ours), headline(matrix, facts.grid.ours))
    for sentence in sentences(matrix, facts.grid.ours):
        console.print(Text(sentence))
    console.print(f"Report: {directory / 'matrix.html'}", highlight=False, soft_wrap=True)
    return 0


@catalogue.command()
@click.argument("file", metavar="CATALOGUE", type=CATALOGUE)
@click.argument("other", metavar="[OTHER]", type=CATALOGUE, required=False)
@grid_option
@measure_option
def compare(file: Path, other: Path | None, grid: str | None, measure: str) -> int:
    """Compare policies with the best of each scenario; with OTHER, compare each policy with itself in OTHER."""
    from experiments.sweep.catalogue import to_read
    from experiments.sweep.equality import chosen_grid
    from experiments.sweep.matrix import matrix_of
    from experiments.sweep.tables import matrix_table

    if other is not None:
        return compare_catalogues(file, other, grid, measure)
    with to_read(file) as opened:
        show_table(matrix_table(matrix_of(opened.rows(chosen_grid(opened, grid).grid.name), measure)))
    return 0


def compare_catalogues(
    first: Path,
    second: Path,
    grid: str | None = None,
    measure: str = "p99",
    file: Path | None = None,
    limit: float | None = None,
) -> int:
    """Compare every cell that both contain, second / first; returns 1 if one is worse beyond noise and `limit`, else 0.

    Raises `BadInputError` when they have no cell in common.
    """
    from experiments.report.text import plainly
    from experiments.sweep.catalogue import to_read
    from experiments.sweep.comparison import change_table, changes
    from experiments.sweep.equality import chosen_grid
    from experiments.terminal import BOUND_MISSED, write_json

    with to_read(first) as one, to_read(second) as two:
        before, after = (opened.rows(chosen_grid(opened, grid).grid.name) for opened in (one, two))
    found = changes(before, after, measure)
    show_table(change_table(found, measure))
    if file is not None:
        write_json("--json", file, {"measure": measure, "changes": [plainly(change) for change in found]})
    worse = [
        change for change in found if change.standing == "behind" and change.ratio.ratio > (limit or math.inf)
    ]
    return BOUND_MISSED if worse else 0


@catalogue.command()
@click.argument("file", metavar="CATALOGUE", type=CATALOGUE)
@click.argument("other", metavar="OTHER", type=CATALOGUE)
@grid_option
def equal(file: Path, other: Path, grid: str | None) -> int:
    """Check whether two catalogues hold identical results; exit code 1 if they do not."""
    from experiments.sweep.catalogue import to_read
    from experiments.sweep.equality import differences

    with to_read(file) as ours, to_read(other) as theirs:
        found = list(differences(ours, theirs, grid))
    for difference in found[:SHOWN]:
        click.echo(difference)
    if len(found) > SHOWN:
        click.echo(f"… and {len(found) - SHOWN} more")
    click.echo(f"{len(found)} cells differ" if found else "equal")
    return DIFFERENT if found else 0


def show_table(table: object) -> None:
    """Print a table on the terminal with all of its columns."""
    from experiments.report.tables import Table
    from experiments.sweep.printing import printed
    from experiments.terminal import console_here

    assert isinstance(table, Table)
    console_here().print(printed(table))


@click.command(epilog=MATRIX_EPILOG)
@click.option("--scenarios", metavar="A,B,…", help="Only these; every packaged one if not given.")
@click.option("--policies", metavar="A,B,…", help="Only these; every registered one if not given.")
@click.option("--seeds", type=click.IntRange(min=1), help=f"How many; {SEEDS}, quick {QUICK_SEEDS}.")
@click.option("--quick", is_flag=True, help="Short runs and few seeds: an impression, not a verdict.")
@click.option("--out", type=click.Path(path_type=Path), help="The catalogue; made if absent, else continued.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; as many as processors if not given.")
@click.option("--scheduler", metavar="ADDRESS", help="Of a Dask cluster that runs already: tcp://host:8786.")
def matrix(
    scenarios: str | None,
    policies: str | None,
    seeds: int | None,
    quick: bool,
    out: Path | None,
    workers: int | None,
    scheduler: str | None,
) -> int:
    """Sweep every scenario × every policy, and draw how far each is from the best."""
    from experiments.simulator.run import simulate
    from experiments.sweep.driver import FAILED, Session, run_session
    from experiments.terminal import console_here

    name = "matrix-quick" if quick else "matrix"
    raw = {
        "name": name,
        "question": "Which policy is best where, and how far from the best are the others?",
        "scenarios": listed("--scenarios", scenarios),
        "policies": listed("--policies", policies),
        "seeds": seeds or (QUICK_SEEDS if quick else SEEDS),
        "quick": quick,
        "ours": OURS,
    }
    file = out or Path("results") / f"{name}.sqlite"
    command = shlex.join(["experiments", *sys.argv[1:]])
    sitting = Session(command=command, out=file, workers=workers, scheduler=scheduler)
    code = run_session(checked_grid(raw, "matrix"), sitting, simulate, console_here())
    return write_report(file) or code if code in (0, FAILED) else code


def listed(option: str, names: str | None) -> object:
    """Names separated by commas, or "all" if not given. Raises `BadInputError`."""
    if names is None:
        return EVERYTHING
    found = [name.strip() for name in names.split(",") if name.strip()]
    if not found:
        raise BadInputError(f"{option}: name at least one, separated by commas")
    return found
