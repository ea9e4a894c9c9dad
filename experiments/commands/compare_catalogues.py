"""Comparison of the catalogues of two sweeps, for `experiments compare`."""

from __future__ import annotations

import math
from pathlib import Path

import click

from experiments.platform.terminal import BOUND_MISSED, console_here, write_json
from experiments.report.terminal_tables import whole_table
from experiments.sweep.catalogue import to_read
from experiments.sweep.comparison import change_table, changes
from experiments.sweep.equality import chosen_grid, differences

SHOWN = 10
"""Number of differing cells that are printed."""


def compare_catalogues(
    first: Path, second: Path, grid: str | None, measure: str, file: Path | None, limit: float | None
) -> int:
    """Compare every cell that both contain, second / first; returns 1 if one is worse beyond noise and `limit`, else 0.

    Raises `BadInputError` when they have no cell in common.
    """
    with to_read(first) as one, to_read(second) as two:
        before, after = (opened.rows(chosen_grid(opened, grid).grid.name) for opened in (one, two))
    found = changes(before, after, measure)
    console_here().print(whole_table(change_table(found, measure)))
    if file is not None:
        write_json("--json", file, {"measure": measure, "changes": found})
    worse = [
        change for change in found if change.standing == "behind" and change.ratio.ratio > (limit or math.inf)
    ]
    return BOUND_MISSED if worse else 0


def compare_exactly(first: Path, second: Path, grid: str | None) -> int:
    """Check whether two catalogues hold identical results; returns 1 if they do not."""
    with to_read(first) as ours, to_read(second) as theirs:
        found = list(differences(ours, theirs, grid))
    for difference in found[:SHOWN]:
        click.echo(difference)
    if len(found) > SHOWN:
        click.echo(f"… and {len(found) - SHOWN} more")
    click.echo(f"{len(found)} cells differ" if found else "equal")
    return BOUND_MISSED if found else 0
