"""Summary table of one case, with a row for each peer.

A peer with a fault in any run has no figures; a void run is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rich.table import Table
from rich.text import Text

from benchmarks.cost.bounds import ratios, runs_of
from benchmarks.cost.plan import CostRun
from benchmarks.harness.cases import FRESH, Kind
from benchmarks.harness.peers import NGINX, OURS
from benchmarks.harness.verdicts import bracketed, over_blocks
from experiments.platform.terminal import FULL_WIDTH, plain_table
from experiments.stats.comparison import Interval

QUIET_SHARE = 0.05
"""Share of the cores used by other processes above which a warning is shown."""


@dataclass(frozen=True, slots=True)
class CostRow:
    """Summary of one peer over all blocks. `figure` is the median in the case's unit; None if invalid."""

    peer: str
    runs: int
    figure: float | None = None
    lowest: float = 0.0
    highest: float = 0.0
    to_nginx: Interval | None = None
    """Mean of the ratios to nginx within blocks."""

    rate: float = 0.0
    user: float = 0.0
    system: float = 0.0
    lag: float = 0.0
    busy: float = 0.0
    fault: str = ""


def rows_of(runs: Sequence[CostRun]) -> list[CostRow]:
    """One row per peer, the cheapest first, invalid ones last."""
    rows = [cost_row(runs, peer) for peer in dict.fromkeys(run.peer for run in runs)]
    return sorted(rows, key=lambda row: (row.figure is None, row.figure or 0.0))


def cost_row(runs: Sequence[CostRun], peer: str) -> CostRow:
    """Summary of one peer; `runs` are of one case."""
    every = [run for run in runs if run.peer == peer]
    own = runs_of(runs, peer)
    faults = [f"block {run.block + 1}: {run.fault}" for run in every if run.fault]
    faults += [] if own else [f"block {run.block + 1}: {run.void}" for run in every]
    if faults:
        return CostRow(peer, len(every), fault="; ".join(faults))
    figures = [run.figure for run in own]
    user = median(run.figure * run.user_share for run in own)
    return CostRow(
        peer,
        len(own),
        figure=median(figures),
        lowest=min(figures),
        highest=max(figures),
        to_nginx=over_blocks(ratios(runs, peer, [NGINX])),
        rate=fmean(run.rate for run in own),
        user=user,
        system=median(figures) - user,
        lag=median(run.lag for run in own),
        busy=median(run.busy for run in own),
    )


def doubts(runs: Sequence[CostRun]) -> str:
    """Warning that the machine was busy with other work; empty if it was quiet."""
    taken = [run.taken for run in runs]
    if not taken or max(taken) < QUIET_SHARE:
        return ""
    return (
        f"NOT QUIET: other processes took {median(taken):.0%} of the cores in the median run, {max(taken):.0%} at "
        "most. Costs are then too high, an interpreter's most of all. Repeat this on a quiet machine."
    )


def columns(kind: Kind) -> list[str]:
    """Column names, the essential ones first."""
    more = {
        Kind.COST: ["requests/s", "user + system µs"],
        Kind.TAIL: ["offered/s", "lag p99 ms", "load's core"],
    }
    return ["proxy", kind.value, f"× {NGINX}", "errors", "min–max", *more.get(kind, ())]


NARROW_COLUMNS = 4
"""Number of columns shown on a narrow terminal."""


def table_of(rows: Sequence[CostRow], kind: Kind, width: int) -> Table:
    """Table for a terminal of `width` columns."""
    shown = columns(kind)[: None if width >= FULL_WIDTH else NARROW_COLUMNS]
    made = plain_table(shown, ())
    for row in rows:
        made.add_row(*cells(row, kind)[: len(shown)], style="bold" if row.peer.startswith(OURS) else "")
    return made


def cells(row: CostRow, kind: Kind) -> list[str | Text]:
    """Cells of a row; at most as many as there are columns."""
    if row.figure is None:
        return [row.peer, Text("INVALID", style="red"), "", Text("yes", style="red")]
    more = {
        Kind.COST: [f"{row.rate:.0f}", f"{row.user:.1f} + {row.system:.1f}"],
        Kind.TAIL: [f"{row.rate:.0f}", f"{row.lag:.2f}", f"{row.busy:.0%}"],
    }
    return [
        row.peer,
        shown(row.figure, kind),
        bracketed(row.to_nginx, unit=""),
        "0",
        f"{shown(row.lowest, kind)}–{shown(row.highest, kind)}",
        *more.get(kind, ()),
    ]


def run_in_words(run: CostRun, kind: Kind) -> str:
    """Figure of a run as text, or the reason why it is void."""
    rate = "" if kind in FRESH else f", {run.rate:.0f}/s"
    return f"void: {run.void}" if run.void else f"{shown(run.figure, kind)} {kind.value}{rate}"


def shown(figure: float, kind: Kind) -> str:
    """Format a figure with the significant digits of its kind."""
    digits = {Kind.COST: 1, Kind.TAIL: 2, Kind.REST: 1}.get(kind, 0)
    return f"{figure:.{digits}f}"
