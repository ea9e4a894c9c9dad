"""What the runs say: a row per peer, the two bounds, the same as JSON.

Rule of this file: ratios are made within a block, where both sides had the same weather, and then their median is
taken. A peer with an error in any run has no figures at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from experiments.bench_runs import Run
from experiments.peers import NGINX, OURS, SESSION

AT_MOST_NGINX = 1.6
AT_LEAST_SESSION = 5.0
COLUMNS = ("unit", "µs/request", "min–max", f"× {NGINX}", "requests/s", "user + system µs", "errors")
ESSENTIAL = ("unit", "µs/request", f"× {NGINX}", "errors")
FULL_WIDTH = 120
QUIET = 0.05
"""Part of the core that others may have before the figures are doubted."""


@dataclass(frozen=True, slots=True)
class Row:
    """One peer over all blocks. Costs in microseconds of processor time per request; None when invalid."""

    peer: str
    runs: int
    cost: float | None = None
    lowest: float = 0.0
    highest: float = 0.0
    to_nginx: tuple[float, float, float] | None = None
    """Median, lowest and highest of the ratios per block."""

    rate: float = 0.0
    user: float = 0.0
    system: float = 0.0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound, and how it stands: `met` is None when there was nothing to judge by."""

    bound: str
    met: bool | None
    found: str

    def __str__(self) -> str:
        word = {True: "met", False: "MISSED", None: "not judged"}[self.met]
        return f"{word}: {self.bound} ({self.found})"


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """A row per peer, the cheapest first, the invalid last."""
    rows = [row_of(runs, peer) for peer in dict.fromkeys(run.peer for run in runs)]
    return sorted(rows, key=lambda row: (row.cost is None, row.cost or 0.0))


def row_of(runs: Sequence[Run], peer: str) -> Row:
    own = [run for run in runs if run.peer == peer]
    faults = [f"block {run.block + 1}: {run.fault}" for run in own if run.fault]
    if faults:
        return Row(peer, len(own), fault="; ".join(faults))
    costs = [run.cost for run in own]
    user = median(run.cost * run.user_share for run in own)
    return Row(
        peer,
        len(own),
        cost=median(costs),
        lowest=min(costs),
        highest=max(costs),
        to_nginx=spread(ratios(runs, peer, NGINX)),
        rate=fmean(run.rate for run in own),
        user=user,
        system=median(costs) - user,
    )


def ratios(runs: Sequence[Run], peer: str, other: str) -> list[float]:
    """Cost of `peer` over that of `other`, for every block that has both; none if one of them is invalid."""
    if any(run.fault for run in runs if run.peer in (peer, other)):
        return []
    costs = {(run.peer, run.block): run.cost for run in runs}
    blocks = [block for name, block in costs if name == peer and (other, block) in costs]
    return [costs[peer, block] / costs[other, block] for block in blocks]


def spread(values: Sequence[float]) -> tuple[float, float, float] | None:
    return (median(values), min(values), max(values)) if values else None


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """Both bounds, for each of our units."""
    made = []
    for peer in dict.fromkeys(run.peer for run in runs if run.peer.startswith(OURS)):
        dearer, cheaper = ratios(runs, peer, NGINX), ratios(runs, SESSION, peer)
        bound = f"{peer} at most {AT_MOST_NGINX} × {NGINX}"
        made.append(judged(bound, runs, (peer, NGINX), dearer, lambda ratio: ratio <= AT_MOST_NGINX))
        bound = f"{peer} at least {AT_LEAST_SESSION:g} × cheaper than the {SESSION}"
        made.append(judged(bound, runs, (peer, SESSION), cheaper, lambda ratio: ratio >= AT_LEAST_SESSION))
    return made


def judged(
    bound: str,
    runs: Sequence[Run],
    sides: tuple[str, str],
    found: list[float],
    holds: Callable[[float], bool],
) -> Verdict:
    """A side that is absent leaves nothing to judge; one that had errors misses."""
    for side in sides:
        if not any(run.peer == side for run in runs):
            return Verdict(bound, None, f"{side} was not measured")
        if any(run.fault for run in runs if run.peer == side):
            return Verdict(bound, met=False, found=f"{side} is invalid")
    middle = median(found)
    return Verdict(
        bound,
        holds(middle),
        f"{middle:.2f} ×, {min(found):.2f}–{max(found):.2f} over {blocks_in_words(len(found))}",
    )


def doubts(runs: Sequence[Run]) -> str:
    """A warning when the machine was busy with something else; empty when it was quiet."""
    taken = [run.taken for run in runs]
    if not taken or max(taken) < QUIET:
        return ""
    return (
        f"NOT QUIET: others took {median(taken):.0%} of the proxy's core in the median run, {max(taken):.0%} at worst. "
        "Costs are then too high, an interpreter's most of all. Repeat this on a quiet machine."
    )


def blocks_in_words(count: int) -> str:
    return f"{count} block{'s' if count != 1 else ''}"


def table_of(rows: Sequence[Row], width: int) -> Table:
    """For a terminal; one of few columns gets the essential ones."""
    made = Table(box=SIMPLE_HEAD, header_style="dim", pad_edge=False)
    shown = [index for index, name in enumerate(COLUMNS) if width >= FULL_WIDTH or name in ESSENTIAL]
    for index in shown:
        name = COLUMNS[index]
        made.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        found = cells(row)
        made.add_row(*(found[index] for index in shown), style="bold" if row.peer.startswith(OURS) else "")
    return made


def cells(row: Row) -> list[str | Text]:
    """As many as COLUMNS."""
    if row.cost is None:
        return [row.peer, Text("INVALID", style="red"), "", "", "", "", Text("yes", style="red")]
    ratio = row.to_nginx
    return [
        row.peer,
        f"{row.cost:.1f}",
        f"{row.lowest:.1f}–{row.highest:.1f}",
        f"{ratio[0]:.2f} ({ratio[1]:.2f}–{ratio[2]:.2f})" if ratio else "–",
        f"{row.rate:.0f}",
        f"{row.user:.1f} + {row.system:.1f}",
        "0",
    ]
