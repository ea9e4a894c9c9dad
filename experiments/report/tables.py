"""The tables of a report, shared by HTML, Markdown and the terminal.

Numbers are formatted only here, with their unit in the column head; on a terminal they are never truncated, and wide
cells wrap. A cell may be marked: `few` rests on too few
samples and is shown grey, `bad` is a failure or an invalid run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from experiments.platform.terminal import rate_digits
from experiments.scenario.places import places_of
from experiments.scenario.service import LiveScenario
from experiments.stats.ceiling import GOODPUT
from experiments.stats.measures import LEAST_BEYOND, Quantile, has_few_beyond, share_per_region
from experiments.stats.run_summary import RunSummary, counted
from experiments.verdict.phrases import show
from experiments.verdict.summary import EntrySummary, Summary

Mark = Literal["", "few", "bad", "good"]

MOST_COLUMNS = 24
"""Maximum number of workers with a column each; beyond it there is a column per region."""


class Cell(NamedTuple):
    """Text of a table cell and its mark."""

    text: str
    mark: Mark = ""


DASH = Cell("–", "few")


def row(*parts: object) -> tuple[Cell, ...]:
    """Cells of a row; what is no cell is written as unmarked text."""
    return tuple(part if isinstance(part, Cell) else Cell(str(part)) for part in parts)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of cells; the first column is text, the others are numbers unless `prose`."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    prose: bool = False

    @property
    def if_any(self) -> Table | None:
        """The table; None if it has no row."""
        return self if self.rows else None


def is_live(summary: Summary) -> bool:
    """Whether the requests are those of clients, and not of a load generator."""
    return isinstance(summary.scenario, LiveScenario)


def without(table: Table, *names: str) -> Table:
    kept = [index for index, name in enumerate(table.columns) if name not in names]
    rows = tuple(tuple(row[index] for index in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[index] for index in kept), rows=rows)


def name_cell(entry: EntrySummary) -> Cell:
    """Label of the entry, marked when none of its runs was valid."""
    return Cell(entry.label) if entry.valid else Cell(f"{entry.label} — INVALID", "bad")


def milliseconds(seconds: float, few: bool = False) -> Cell:
    """Whole milliseconds, with decimals below 100 ms; a dash for non-finite values."""
    if not math.isfinite(seconds):
        return DASH
    digits = 0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 2
    return Cell(f"{seconds * 1e3:.{digits}f}", "few" if few else "")


def supported(quantile: Quantile) -> Cell:
    """Quantile in milliseconds: grey where it rests on few samples, a dash where it rests on too few to be shown."""
    return milliseconds(math.nan if quantile.hidden else quantile.seconds, quantile.few)


def comparison_table(summary: Summary) -> Table:
    """Paired ratios to the baseline in every measure, with the A/A control as the last rows."""
    columns = ("entry", "measure", "ratio [95 %]", "p (Holm)", "blocks", "standing")
    rows = [
        row(
            comparison.label,
            comparison.measure,
            show(comparison.interval) + " odds of a miss" * (comparison.judged_by == GOODPUT),
            p_text(comparison.p_value) if comparison.interval.blocks > 1 else "–",
            comparison.interval.blocks,
            Cell(comparison.standing, "good" if comparison.standing == "ahead" else ""),
        )
        for comparison in summary.comparisons
        if comparison.interval.blocks
    ]
    rows += [
        row("A/A pair", measure, show(floor), "–", floor.blocks, "noise floor")
        for measure, floor in summary.noise_floor.items()
    ]
    method = "an interval that holds at every look" if is_live(summary) else "Student's interval"
    if summary.scenario.load.is_replay:
        method += ", or that over parts of the replayed record if it is wider"
    note = (
        f"Ratio to {summary.scenario.baseline}, paired inside each block, geometric mean over blocks with "
        f"{method}. Above 1 is better for throughput, below 1 for latencies. They "
        "map failures to the deadline; where it is the latency of both, the odds of a late or failed answer are "
        "compared. An entry is ahead or behind if p after Holm's adjustment is below 5 %, the "
        "interval is not within ±5 %, and the ratio is further from 1 than the bias that the A/A pair proves, if it "
        "does. The entry that is run twice is represented by both of its runs."
    )
    return Table("Against the baseline", note, columns, tuple(rows))


def p_text(p_value: float) -> str:
    """Format a p-value with four digits, or as smaller than they show."""
    return f"{p_value:.4f}" if p_value >= 0.0001 else "< 0.0001"


def share_table(summary: Summary) -> Table:
    """Share of answers per worker; with many workers, per region with the spread over workers."""
    workers = tuple(dict.fromkeys(worker for entry in summary.entries for worker in entry.share_per_worker))
    if len(workers) > MOST_COLUMNS:
        return region_table(summary)
    rows = tuple(
        row(name_cell(entry), *(f"{100 * entry.share_per_worker.get(worker, 0):.1f}" for worker in workers))
        for entry in summary.entries
        if workers
    )
    columns = ("entry", *(f"{worker} %" for worker in workers))
    return Table("Share per worker", "Part of the answered requests.", columns, rows)


def region_table(summary: Summary) -> Table:
    """Share of answers per region, and those of the least and most loaded workers as multiples of an even share."""
    places = places_of(summary.scenario)
    rows = []
    for entry in summary.entries:
        shares = entry.share_per_worker
        parts = [len(shares) * share for share in shares.values()]
        regions = share_per_region(shares, places).values()
        shown = [f"{100 * part:.1f}" for part in regions]
        rows.append(row(name_cell(entry), *shown, f"{min(parts):.2f}", f"{max(parts):.2f}"))
    note = "Part of the answered requests. The least and the most asked of all workers, in even parts."
    names = dict.fromkeys(place.region for place in places)
    columns = ("entry", *(f"{name} %" for name in names), "least ×", "most ×")
    return Table("Share per region", note, columns, tuple(rows))


def threshold_table(summary: Summary) -> Table:
    results = {True: Cell("passed", "good"), False: Cell("FAILED", "bad"), None: Cell("not judged", "bad")}
    rows = tuple(
        row(one.label, one.threshold, results[one.passed], one.message) for one in summary.thresholds
    )
    note = "One that failed or could not be judged makes the command exit with 1."
    return Table("Thresholds", note, ("entry", "threshold", "result", "by how much"), rows, prose=True)


def run_table(summary: Summary) -> Table:
    """Every run in execution order, invalid ones with their reasons, then those of blocks that were measured again."""
    columns = (
        "entry", "block", "place", "requests", "KO", "OK/s", "p99 with KO ms",
        "offered /s", "sent /s", "lag p50 ms", "lag p99 ms", "validity",
    )  # fmt: skip
    note = "The unit of comparison is the run."
    lag = " Lag is how late the generator sent; a run of which it may be half is invalid, and its block left out."
    kept = counted(summary.runs)
    rows = (run_cells(run, run in kept) for run in (*summary.runs, *summary.set_aside))
    if is_live(summary):
        table = Table("Runs", note, columns, tuple(rows))
        return without(table, "offered /s", "lag p50 ms", "lag p99 ms")
    return Table("Runs", note + lag, columns, tuple(rows))


def run_cells(run: RunSummary, counts: bool) -> tuple[Cell, ...]:
    return row(
        Cell(run.label, "" if run.valid else "bad"),
        *(run.block + 1, run.order + 1, run.requests),
        Cell(str(run.ko), "bad" if run.ko else ""),
        rate_digits(run.throughput),
        milliseconds(math.nan if has_few_beyond(run.requests, 99.0, LEAST_BEYOND) else run.p99),
        "closed" if run.offered_rate is None else rate_digits(run.offered_rate),
        rate_digits(run.achieved_rate),
        milliseconds(run.lag_p50),
        milliseconds(run.lag_p99),
        validity_cell(run, counts),
    )


def validity_cell(run: RunSummary, counts: bool) -> Cell:
    """Whether the run counts, and if not, why."""
    attempt = f"set aside, attempt {run.set_aside}" if run.set_aside else ""
    if not run.valid:
        return Cell(f"INVALID{', ' + attempt if attempt else ''}: {'; '.join(run.invalid_reasons)}", "bad")
    return Cell(attempt or ("valid" if counts else "left out with its block"), "" if counts else "few")


STYLES = {"": "", "few": "dim italic", "bad": "red", "good": "green"}
ESSENTIAL = ("entry", "total", "KO", "req/s", "50th", "95th", "99th", "max")
"""Columns of the statistics table that every terminal shows."""

MAX_COLUMNS = 1000
"""Columns of a terminal in which every table fits."""

TEXT_COLUMNS = ("policy", "scenario", "the second is")


def terminal_table(table: Table, width: int, essential: Sequence[str] = ESSENTIAL) -> RichTable:
    """Statistics table for a terminal of `width` columns: the last ones that are not essential go until it fits."""
    names = list(table.columns)
    while True:
        made = with_columns(table, names, no_wrap=True, caption="latency in ms")
        left = [name for name in names if name not in essential]
        if not left or Console(width=MAX_COLUMNS).measure(made).maximum <= width:
            return made
        names.remove(left[-1])


def whole_table(table: Table) -> RichTable:
    """Table with its title, note and all columns, whose cells may wrap."""
    left: Any = {"title_justify": "left", "caption_justify": "left"}
    return with_columns(table, table.columns, title=table.title, caption=table.note, **left)


def with_columns(table: Table, names: Sequence[str], no_wrap: bool = False, **look: Any) -> RichTable:
    """Columns `names` of a table, text left-aligned and numbers right-aligned; the first may wrap in any case."""
    made = RichTable(header_style="dim", box=SIMPLE_HEAD, pad_edge=False, **look)
    shown = [index for index, name in enumerate(table.columns) if name in names]
    for index in shown:
        is_text = table.prose or index == 0 or table.columns[index] in TEXT_COLUMNS
        justify: Literal["left", "right"] = "left" if is_text else "right"
        made.add_column(table.columns[index], justify=justify, no_wrap=no_wrap and index > 0)
    for row in table.rows:
        made.add_row(*(terminal_cell(row[index]) for index in shown))
    return made


def terminal_cell(cell: Cell) -> Text:
    return Text(cell.text, style=STYLES[cell.mark])
