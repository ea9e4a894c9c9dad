"""Tables of a catalogue on a terminal. Numbers are never truncated; wide cells wrap."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from experiments.commands.session import terminal_cell
from experiments.report.tables import Table


def printed(table: Table) -> RichTable:
    """Convert a table for the terminal, with text left-aligned and numbers right-aligned."""
    made = RichTable(
        title=table.title,
        caption=table.note,
        title_justify="left",
        caption_justify="left",
        header_style="dim",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for index, name in enumerate(table.columns):
        is_text = table.prose or index == 0 or name in ("policy", "scenario", "the second is")
        made.add_column(name, justify="left" if is_text else "right")
    for row in table.rows:
        made.add_row(*map(terminal_cell, row))
    return made
