"""The command `experiments report`: draw a report from files alone: results, a catalogue or an access log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from experiments.commands.options import GRID, MEASURE, PARQUET, command_line, new_directory, require_none
from experiments.platform.printable import printable
from experiments.platform.terminal import console_here, make_directory, print_verdict

if TYPE_CHECKING:
    from io import RawIOBase

    from experiments.report.access_log import LogRuns

EPILOG = """\b
Examples:
  experiments report results/first
  experiments report results/steady-load-20260101-120000      a load curve of `capacity --curve`
  experiments report results/first.sqlite --measure p50       the policy matrix of a sweep
  experiments report results/matrix.sqlite --measured results/steady --measured results/regions
  experiments report access.log                 real traffic, into results/log-access-…
  cat access.log.*.gz | experiments report - --out results/monday     compressed or not

\b
The log is written by a balancer that is configured to:
  [log]
  access = "json"                               or "text"
  path = "access.log"
"""

CATALOGUE_BEGINS = b"SQLite format 3\0"


@click.command(epilog=EPILOG)
@click.argument("path", type=click.Path(path_type=Path, allow_dash=True))
@GRID
@MEASURE
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory for the report.  [default: of a log a new one below results/, else beside what is drawn]",
)
@click.option(
    "--measured",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Of a catalogue: results of a measured campaign, to be shown below; may be repeated.",
)
@PARQUET
def report(
    path: Path,
    grid: str | None,
    measure: str | None,
    out: Path | None,
    measured: tuple[Path, ...],
    parquet: bool,
) -> int:
    """Draw the report of PATH.

    PATH is a results directory, a load curve, the catalogue of a sweep, or an access log of the balancer as text,
    logfmt or JSON; - is a log on standard input.
    """
    from experiments.capacity.curve import is_curve
    from experiments.commands.session import present  # matplotlib takes half a second

    if is_catalogue(path):
        return report_catalogue(path, out, grid, measure or "p99", measured, parquet)
    require_none(
        {"grid": grid, "measure": measure, "measured": measured}, "only for the catalogue of a sweep"
    )
    if str(path) == "-" or (path.exists() and not path.is_dir()):
        require_none({"parquet": parquet}, "not for an access log")
        return report_log(path, out)
    if out is not None:
        make_directory("--out", out)
    if is_curve(path):
        require_none({"parquet": parquet}, "not for a load curve; draw each of its rates")
        report_curve(path, console_here(), out)
        return 0
    return present(path, console_here(), parquet, out=out)


def is_catalogue(path: Path) -> bool:
    """Whether the file is the catalogue of a sweep, by its name or by how it begins."""
    if path.suffix == ".sqlite" or not path.is_file():
        return path.is_file()
    try:
        with path.open("rb") as file:
            return file.read(len(CATALOGUE_BEGINS)) == CATALOGUE_BEGINS
    except OSError:
        return False  # the reader of logs reports why


def report_curve(directory: Path, console: Console, out: Path | None = None) -> None:
    """Write the report of a load curve and print its table and the knees."""
    from experiments.capacity.curve_page import (
        print_curve,
        write_load_report,
    )  # matplotlib takes half a second

    with console.status("Drawing the report"):
        curve = write_load_report(directory, out)
    print_curve(curve, console)
    console.print(f"Report: {(out or directory) / 'load.html'}", highlight=False, soft_wrap=True)


def report_catalogue(
    file: Path,
    out: Path | None = None,
    grid: str | None = None,
    measure: str = "p99",
    measured: tuple[Path, ...] = (),
    parquet: bool = False,
) -> int:
    """Write the policy matrix of a catalogue as HTML, PNG, SVG, CSV and JSON, and print its headline and sentences."""
    from experiments.sweep.catalogue import to_read
    from experiments.sweep.matrix import measured_matrix
    from experiments.sweep.page import write_page
    from experiments.sweep.sentences import headline, is_met, sentences

    console, directory = console_here(), out or file.with_name(f"{file.stem}-report")
    make_directory("--out", directory)
    with to_read(file) as opened, console.status("Drawing the report"):
        beside = measured_matrix(measured, measure) if measured else None
        facts, matrix = write_page(opened, grid, measure, directory, beside, parquet)
    print_verdict(console, is_met(matrix, facts.grid.ours), headline(matrix, facts.grid.ours))
    for sentence in sentences(matrix, facts.grid.ours):
        console.print(Text(sentence))
    console.print(f"Report: {directory / 'matrix.html'}", highlight=False, soft_wrap=True)
    return 0


def report_log(file: Path, out: Path | None) -> int:
    """Draw the figures that an access log of the balancer has data for; - is standard input."""
    from experiments.report.access_log import write_log_report  # matplotlib takes half a second
    from experiments.report.tables import terminal_table

    console = console_here()
    if out is not None:
        make_directory("--out", out)
    log = load(file, console)
    directory = out or new_directory(f"log-{Path(log.name).stem.replace(' ', '-')}")
    with console.status("Drawing the report"):
        tables = write_log_report(log, directory, command_line())
    console.print(terminal_table(tables[0], console.width))
    for words in filter(None, (log.unreadable_in_words, log.sampled_in_words)):
        console.print(Text(words, style="yellow"))
    console.print(Text(f"Report: {directory / 'report.html'}"), soft_wrap=True)
    return 0


def load(file: Path, console: Console) -> LogRuns:
    """Read the log, with a progress bar on a terminal. Raises `BadInputError`."""
    from experiments.recorded.access_log import read_log
    from experiments.recorded.packed import reading, text_lines
    from experiments.report.access_log import log_runs

    name = "standard input" if str(file) == "-" else str(file)
    with reading(f"{name}:"), opened(file, console) as raw:
        columns = read_log(text_lines(raw, "ascii"), name)  # a log is ASCII
    return log_runs(columns, name if str(file) == "-" else printable(file.name))


@contextmanager
def opened(file: Path, console: Console) -> Iterator[BufferedReader]:
    """The bytes of the file, with a progress bar."""
    if str(file) == "-":
        yield cast("BufferedReader", sys.stdin.buffer)
        return
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    with progress, progress.open(file, "rb", description="Reading") as raw:
        yield BufferedReader(cast("RawIOBase", raw))
