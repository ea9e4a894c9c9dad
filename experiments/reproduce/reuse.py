"""`experiments reproduce reuse`: gain of connection reuse for a service that calls a third party.

Only runs the measurements and prints tables, a figure and verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from experiments.reproduce.api_calls import Made
from experiments.reproduce.quantities import Quantities, quantities_of, table_of
from experiments.reproduce.reuse_runs import BASELINE, OURS, QUICK, WAYS, Run, Setup, run_plan
from experiments.reproduce.session import Choices, Session, Verdict, run_session, with_choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEFORE = Quantities(109.195, 375, 3493, 4941, 9035, 14522, 23363, 4289, 2599)
AFTER = Quantities(168.142, 212, 1587, 2063, 5725, 24686, 48450, 2546, 3956)
SOURCE = {"source: new connections": BEFORE, "source: reuse, libcurl": AFTER}

GAIN = 1.54
HALF = 0.5

EPILOG = """\b
Examples:
  experiments reproduce reuse                         four minutes, writes reuse.png
  experiments reproduce reuse --quick --check         under a minute
  experiments reproduce reuse --json reuse.json --plots results
"""


@click.command(epilog=EPILOG)
@with_choices
def reuse(choices: Choices) -> int:
    """Nine calls, 19 000 requests, to a third party by https: new connections, aiohttp, libcurl and our pool."""
    return run_session(ReuseReproduction(QUICK if choices.quick else Setup()), choices)


class ReuseReproduction(Session):
    """Session: collects the runs and prints the results."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self._setup = setup
        self._runs: list[Run] = []

    def introduction(self) -> str:
        return introduction(self._setup)

    async def run_plan(self, seed: int, folder: Path) -> None:
        await run_plan(self._setup, seed, folder, self.status.update, self._runs.append)
        self._runs.sort(key=lambda run: WAYS.index(run.way))

    @property
    def _rows(self) -> dict[str, Quantities]:
        return {run.way.name: row_of(run, self._setup) for run in self._runs}

    def present(self) -> list[Verdict]:
        if not self._runs:
            return []
        theirs = [(name, row, "0") for name, row in SOURCE.items()]
        ours = [(run.way.name, row_of(run, self._setup), str(failed(run.made))) for run in self._runs]
        title = f"{self._setup.calls} requests; ms, in the source's time: 1 s of it took {self._setup.time_scale:g} s"
        self.console.print(table_of(title, [*theirs, *ours]))
        self.console.print(table_of_connections(self._runs, self._setup))
        for way in WAYS:
            if way.absence:
                self.console.print(Text(f"{way.name}: not measured, {way.absence}.", style="yellow"))
        return verdicts(self._rows, {run.way.name: run for run in self._runs})

    def figures(self) -> Mapping[str, Callable[[], Figure]]:
        from experiments.reproduce.reuse_figure import reuse_figure

        scale = self._setup.time_scale
        taken = {run.way.name: [made.took / scale for made in run.made if made.is_ok] for run in self._runs}
        return {"reuse": partial(reuse_figure, taken, self._rows, SOURCE)} if taken else {}

    def content(self) -> dict[str, Any]:
        return {
            "setup": asdict(self._setup),
            "source": {name: asdict(row) for name, row in SOURCE.items()},
            "rows": {name: asdict(row) for name, row in self._rows.items()},
            "runs": [summary(run) for run in self._runs],
            "absent": {way.name: way.absence for way in WAYS if way.absence},
        }


def row_of(run: Run, setup: Setup) -> Quantities:
    """Statistics of all calls, including failed ones, in the source's time."""
    return quantities_of([made.took for made in run.made], run.span).scaled(setup.time_scale)


def failed(made: Sequence[Made]) -> int:
    """Number of calls that broke or got a status of 400 or more."""
    return sum(not one.is_ok for one in made)


def summary(run: Run) -> dict[str, Any]:
    """Summary of a run for JSON, without single calls."""
    return {
        "way": run.way.name,
        "requests": len(run.made),
        "failed": failed(run.made),
        "calls": Counter(one.name for one in run.made),
        "statuses": Counter(one.status for one in run.made),
        "failed_calls": Counter(one.name for one in [*run.made, *run.few] if not one.is_ok),
        "span": run.span,
        "connections": run.connections,
        "few": {
            "requests": len(run.few),
            "failed": failed(run.few),
            "statuses": Counter(one.status for one in run.few),
            "connections": run.few_connections,
        },
    }


def introduction(setup: Setup) -> str:
    (low, high), (fewest, most), (shortest, longest) = setup.service, setup.requests, setup.idle
    return (
        f"{setup.users} users at once, each with its nine kinds of calls one after the other, {setup.calls} in all; "
        f"the service makes {setup.at_once} at a time.\nThe third party: {1e3 * setup.round_trip:g} ms of round trip, "
        f"TLS 1.2, {1e3 * low:g} to {1e3 * high:g} ms of service; it ends connections after {fewest} to {most} "
        f"requests and, without notice, after {shortest:g} to {longest:g} idle seconds.\nTime is compressed: a second "
        f"takes {setup.time_scale:g} s here, and figures are given in the source's time.\n"
    )


def table_of_connections(runs: Sequence[Run], setup: Setup) -> Table:
    """Table of connection counters under load and with little traffic."""
    little = setup.little
    table = Table(
        title=f"connections: in the crowd; and with {little.calls} calls, to each of {little.parties} third parties "
        f"one every {little.gap * little.parties:g} s"
    )
    heads = (
        "",
        "opened",
        "reused",
        "opened",
        "reused",
        "lost while idle",
        "died",
        "repeated",
        "failed",
        "p50, ms",
    )
    for name in heads:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for run in runs:
        first, then = run.connections, run.few_connections
        # aiohttp and libcurl do not expose these counters
        known = [str(then[name]) if run.way.transport == "native" else "–" for name in ("lost_idle", "died")]
        p50 = quantities_of([one.took for one in run.few], 0.0).p50
        counts = (first["opened"], first["reused"], then["opened"], then["reused"])
        end = (then["repeated"], failed(run.few), f"{p50:.0f}")
        table.add_row(run.way.name, *map(str, counts), *known, *map(str, end))
    return table


def verdicts(rows: Mapping[str, Quantities], runs: Mapping[str, Run]) -> list[Verdict]:
    """Verdicts on our pool against new connections."""
    if BASELINE.name not in rows or OURS.name not in rows:
        return []
    old, new, run = rows[BASELINE.name], rows[OURS.name], runs[OURS.name]
    gain, half = new.rate / old.rate, new.p50 / old.p50
    beaten = [
        (gain >= GAIN, f"throughput {gain:.2f} × that of new connections (source: {GAIN} ×)"),
        (half <= HALF, f"median {half:.2f} of theirs (source: {AFTER.p50 / BEFORE.p50:.2f})"),
        (new.p99 < old.p99, f"p99 {new.p99:.0f} ms, theirs {old.p99:.0f} ms (source: it grew by 70 %)"),
        (new.most < old.most, f"max {new.most:.0f} ms, theirs {old.most:.0f} ms (source: it doubled)"),
        (failed(run.made) == 0, f"{failed(run.made)} of {len(run.made)} failed by our pool"),
        (failed(run.few) == 0, f"{failed(run.few)} of {len(run.few)} failed by our pool with little traffic"),
    ]
    return [Verdict(is_met, words) for is_met, words in beaten]
