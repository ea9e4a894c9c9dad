"""`experiments reproduce keepalive`: what keep-alive, TLS 1.3 and HTTP/2 are worth to one sequential caller.

Rule of this file: it decides nothing by itself. Visits become a table, a figure and verdicts.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from experiments.errors import BadInputError
from experiments.reproduce.cells import (
    CELLS,
    MOST_LAG,
    QUICK,
    SLOWER,
    UNIT,
    WITHIN,
    Row,
    Setup,
    Visit,
    http2_beside_http1,
    lag_of,
    rows_of,
    saved_by,
)
from experiments.reproduce.visits import carry_out
from experiments.terminal import (
    BOUND_MISSED,
    STANDING,
    STOPPED,
    console_here,
    interruptible,
    must_be_writable,
    tell,
    write_json,
)

SOURCE = {("1.2", True): "≥ 135", ("1.2", False): "30"}
"""What the source says in ms, by TLS and whether it is the first call. It counts TCP's third packet, which travels
with TLS's first, as a trip of its own, and no time of service."""

EPILOG = """\b
Examples:
  experiments reproduce keepalive                    about three minutes, writes keepalive.png
  experiments reproduce keepalive --quick --check    half a minute
"""


@click.command(epilog=EPILOG)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the order.")
@click.option("--quick", is_flag=True, help="Few visits: an impression, and for tests.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("keepalive.png"),
    show_default=True,
    help="The figure, as PNG.",
)
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there."
)
@click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
def keepalive(seed: int, quick: bool, plot: Path, file: Path | None, check: bool) -> int:
    """HTTP/1.1 and 2, TLS 1.2 and 1.3, with keep-alive and without, over 15 ms one way."""
    for option, path in (("--plot", plot), ("--json", file)):
        must_be_writable(option, path)
    sitting = Sitting(QUICK if quick else Setup(), console_here())
    was_stopped = sitting.conduct(seed)
    met = sitting.present(plot)
    if file is not None:
        sitting.write(file)
    if was_stopped:
        return STOPPED
    return BOUND_MISSED if check and False in met else 0


class Sitting:
    """The visits as they come, and what is said of them."""

    def __init__(self, setup: Setup, console: Console) -> None:
        self._setup, self._console = setup, console
        self._total = setup.visits * (len(CELLS) + 1)
        self._visits: list[Visit] = []
        self._status = Status("starting workers", console=console, refresh_per_second=2)

    def conduct(self, seed: int) -> bool:
        """Measure; returns whether it was stopped. Raises ExperimentError."""
        self._console.print(Text(introduction(self._setup)))
        with tempfile.TemporaryDirectory(prefix="steelyard-") as name, self._status:
            try:
                asyncio.run(interruptible(carry_out(self._setup, seed, Path(name), self._told)))
            except (asyncio.CancelledError, KeyboardInterrupt):
                self._console.print("[yellow]Stopped.[/] Nothing was left running.")
                return True
        return False

    def _told(self, visit: Visit) -> None:
        self._visits.append(visit)
        self._status.update(f"[{len(self._visits)}/{self._total}] {visit.cell.name}")

    def present(self, plot: Path) -> list[bool | None]:
        """Table, figure and verdicts; returns whether each bound is met."""
        rows = rows_of(self._visits, self._setup)
        if not rows:
            return []
        self._console.print(table_of(rows))
        draw(rows, plot)
        self._console.print(Text(str(plot)))
        for words in findings(rows, self._visits):
            self._console.print(Text(words))
        met = [self._judged(row) for row in rows]
        for row, is_met in zip(rows, met, strict=True):
            words = f"{row.cell.name}: medians within {WITHIN:.0%} of arithmetic"
            tell(self._console, is_met, f"{STANDING[is_met]}: {words}")
        if None in met:
            lag = 1e3 * lag_of(self._visits)
            self._console.print(
                Text(f"Others had the machine: every tenth sleep ended {lag:.1f} ms late or more.")
            )
        return met

    def _judged(self, row: Row) -> bool | None:
        """A machine that others have only ever adds: what is met is met, what is not is not judged."""
        return row.is_met or (None if lag_of(self._visits) > MOST_LAG else False)

    def write(self, file: Path) -> None:
        """Raises BadInputError when the file cannot be written."""
        rows = rows_of(self._visits, self._setup)
        beside = http2_beside_http1(self._visits)
        found = {
            "setup": asdict(self._setup),
            "lag": lag_of(self._visits),
            "rows": [asdict(row) | {"name": row.cell.name, "met": self._judged(row)} for row in rows],
            "http2_beside_http1": beside and {"ratio": beside[0], "interval": beside[1]},
            "visits": [asdict(visit) for visit in self._visits],
        }
        write_json("--json", file, found)


def introduction(setup: Setup) -> str:
    return (
        f"One sequential caller, workers {1e3 * setup.one_way:g} ms away one way, "
        f"{1e3 * setup.service:g} ms of service, {setup.visits} visits of {setup.calls} calls to each cell.\n"
        "The caller is a blocking socket, with the h2 library for HTTP/2; no session is resumed.\n"
    )


def table_of(rows: list[Row]) -> Table:
    """A row for each cell: measured, its interval, arithmetic and source."""
    table = Table(
        title="ms: median [95 % interval], arithmetic, and the source's figure, which is without service"
    )
    for name in ("cell", "first", "theory", "source", "later", "theory", "source"):
        table.add_column(name, justify="left" if name == "cell" else "right", no_wrap=True)
    for row in rows:
        tls = row.cell.tls
        later = SOURCE.get((tls, False), "–") if row.cell.keep_alive else SOURCE.get((tls, True), "–")
        table.add_row(
            row.cell.name,
            measured(row.first, row.first_interval),
            f"{row.first_expected:.0f}",
            SOURCE.get((tls, True), "–"),
            measured(row.later, row.later_interval),
            f"{row.later_expected:.0f}",
            later,
        )
    return table


def measured(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.1f} [{interval[0]:.1f}, {interval[1]:.1f}]"


def findings(rows: list[Row], visits: list[Visit]) -> list[str]:
    """What the source concluded, and what is seen here."""
    found = []
    for tls, theirs in (("1.2", "206 ms, on a longer way"), ("1.3", "–")):
        if (saved := saved_by(rows, tls)) is not None:
            found.append(f"Keep-alive saves {saved:.1f} ms per later call with TLS {tls} (source: {theirs}).")
    if (beside := http2_beside_http1(visits)) is not None:
        ratio, (low, high) = beside
        found.append(
            f"HTTP/2 takes {ratio:.3f} [{low:.3f}, {high:.3f}] times as long as HTTP/1.1 for one sequential caller "
            f"(source: {SLOWER} times)."
        )
    near = {row.cell: row.later for row in rows}
    direct = next((row.later for row in rows if row.cell == CELLS_DIRECT), None)
    if direct is not None and UNIT in near:
        found.append(f"The unit, asked without TLS, adds {near[UNIT] - direct:+.2f} ms to a later call.")
    return found


CELLS_DIRECT = next(cell for cell in CELLS if (cell.http, cell.tls, cell.keep_alive) == ("1.1", "1.3", True))


def draw(rows: list[Row], plot: Path) -> None:
    """Raises BadInputError when the file cannot be written."""
    from experiments.report.canvas import to_png  # half a second of imports that `--help` does not need
    from experiments.reproduce.figure import matrix_figure

    try:
        plot.write_bytes(to_png(matrix_figure(rows)))
    except OSError as error:
        raise BadInputError(f"--plot: {plot}: {error.strerror}") from None
