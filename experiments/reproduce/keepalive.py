"""`experiments reproduce keepalive`: gain of keep-alive, TLS 1.3 and HTTP/2 for one sequential client.

Only runs the visits and prints a table, a figure and verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from experiments.reproduce.keepalive_matrix import (
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
from experiments.reproduce.keepalive_runs import run_plan
from experiments.reproduce.session import Choices, Session, Verdict, run_session, with_choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = {("1.2", True): "≥ 135", ("1.2", False): "30"}
"""The source's results in ms, by TLS version and whether it is the first call. It counts TCP's third packet, which
travels with TLS's first, as a round trip of its own, and no service time.
"""

EPILOG = """\b
Examples:
  experiments reproduce keepalive                    about four minutes, writes keepalive.png
  experiments reproduce keepalive --quick --check    half a minute
"""


@click.command(epilog=EPILOG)
@with_choices
def keepalive(choices: Choices) -> int:
    """HTTP/1.1 and 2, TLS 1.2 and 1.3, with keep-alive and without, over 15 ms one way."""
    return run_session(KeepaliveReproduction(QUICK if choices.quick else Setup()), choices)


class KeepaliveReproduction(Session):
    """Session: collects the visits and prints the results."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self._setup = setup
        self._visits: list[Visit] = []

    def introduction(self) -> str:
        return introduction(self._setup)

    async def run_plan(self, seed: int, folder: Path) -> None:
        await run_plan(self._setup, seed, folder, self._progress)

    def _progress(self, visit: Visit) -> None:
        self._visits.append(visit)
        total = self._setup.visits * 2 * (len(CELLS) + 1)
        self.status.update(f"[{len(self._visits)}/{total}] {visit.cell.name}")

    @property
    def _rows(self) -> list[Row]:
        return rows_of(self._visits, self._setup)

    def present(self) -> list[Verdict]:
        rows = self._rows
        if not rows:
            return []
        self.console.print(table_of(rows))
        for words in findings(rows, self._visits):
            self.console.print(Text(words))
        verdicts = [
            Verdict(self._judged(row), f"{row.cell.name}: medians within {WITHIN:.0%} of arithmetic")
            for row in rows
        ]
        explained = sum(row.is_explained for row in rows)
        self.console.print(
            Text(
                f"{explained} of {len(rows)} rows are within {WITHIN:.0%} of the trips and what the same takes near."
            )
        )
        if any(verdict.is_met is None for verdict in verdicts):
            lag = 1e3 * lag_of(self._visits)
            self.console.print(
                Text(f"Others had the machine: every tenth sleep ended {lag:.1f} ms late or more.")
            )
        return verdicts

    def _judged(self, row: Row) -> bool | None:
        """Verdict on a row. Other load on the machine only adds time: under it a miss is not judged."""
        return row.is_met or (None if lag_of(self._visits) > MOST_LAG else False)

    def figures(self) -> Mapping[str, Callable[[], Figure]]:
        from experiments.reproduce.keepalive_figure import matrix_figure

        return {"keepalive": partial(matrix_figure, rows)} if (rows := self._rows) else {}

    def content(self) -> dict[str, Any]:
        beside = http2_beside_http1(self._visits)
        return {
            "setup": asdict(self._setup),
            "lag": lag_of(self._visits),
            "rows": [
                asdict(row) | {"name": row.cell.name, "met": self._judged(row), "explained": row.is_explained}
                for row in self._rows
            ],
            "http2_beside_http1": beside and {"ratio": beside[0], "interval": beside[1]},
            "visits": [asdict(visit) for visit in self._visits],
        }


def introduction(setup: Setup) -> str:
    return (
        f"One sequential caller, workers {1e3 * setup.one_way:g} ms away one way, "
        f"{1e3 * setup.service:g} ms of service, {setup.visits} visits of {setup.calls} calls to each cell, and as "
        "many to its twin that is not away: what both ends compute is there, and no trips.\n"
        "The caller is a blocking socket, with the h2 library for HTTP/2; no session is resumed.\n"
    )


def table_of(rows: list[Row]) -> Table:
    """Table with a row for each cell: measured, interval, expected, theory and source."""
    table = Table(
        title="ms: median [95 % interval]; what the same takes near + trips (arithmetic: service + trips); "
        "the source's, without service"
    )
    for name in ("cell", "first", "near + trips", "source", "later", "near + trips", "source"):
        table.add_column(name, justify="left" if name == "cell" else "right", no_wrap=True)
    for row in rows:
        tls = row.cell.tls
        later = SOURCE.get((tls, False), "–") if row.cell.keep_alive else SOURCE.get((tls, True), "–")
        table.add_row(
            row.cell.name,
            measured(row.first, row.first_interval),
            f"{row.first_expected:.1f} ({row.first_theory:.0f})",
            SOURCE.get((tls, True), "–"),
            measured(row.later, row.later_interval),
            f"{row.later_expected:.1f} ({row.later_theory:.0f})",
            later,
        )
    return table


def measured(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.1f} [{interval[0]:.0f}, {interval[1]:.0f}]"


def findings(rows: list[Row], visits: list[Visit]) -> list[str]:
    """The source's conclusions with the results measured here."""
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
