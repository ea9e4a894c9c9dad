"""Tables of a report on a terminal. Numbers are never truncated; wide cells wrap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from experiments.report.tables import Cell, Table

STYLES = {"": "", "few": "dim italic", "bad": "red", "good": "green"}
ESSENTIAL = ("entry", "total", "KO", "req/s", "50th", "95th", "99th", "max")
"""Columns of the statistics table that a narrow terminal shows."""

MAX_COLUMNS = 1000
"""Columns of a terminal in which every table fits."""

LOOK: Any = {"header_style": "dim", "box": SIMPLE_HEAD, "pad_edge": False}
TEXT_COLUMNS = ("policy", "scenario", "the second is")


def terminal_table(table: Table, width: int, essential: Sequence[str] = ESSENTIAL) -> RichTable:
    """Statistics table for a terminal of `width` columns: only the essential columns if not all fit."""
    whole = with_columns(table, table.columns)
    fits = Console(width=MAX_COLUMNS).measure(whole).maximum <= width
    return whole if fits else with_columns(table, essential)


def with_columns(table: Table, names: Sequence[str]) -> RichTable:
    """Columns `names` of a statistics table."""
    made = RichTable(caption="latency in ms", **LOOK)
    shown = [index for index, name in enumerate(table.columns) if name in names]
    for index in shown:
        made.add_column(table.columns[index], justify="right" if index else "left", no_wrap=index > 0)
    for row in table.rows:
        made.add_row(*(terminal_cell(row[index]) for index in shown))
    return made


def whole_table(table: Table) -> RichTable:
    """Table with its title, note and all columns, text left-aligned and numbers right-aligned."""
    made = RichTable(
        title=table.title, caption=table.note, title_justify="left", caption_justify="left", **LOOK
    )
    for index, name in enumerate(table.columns):
        is_text = table.prose or index == 0 or name in TEXT_COLUMNS
        made.add_column(name, justify="left" if is_text else "right")
    for row in table.rows:
        made.add_row(*map(terminal_cell, row))
    return made


def terminal_cell(cell: Cell) -> Text:
    return Text(cell.text, style=STYLES[cell.mark])
