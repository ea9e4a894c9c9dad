"""Options of commands that also read the catalogue of a sweep."""

from __future__ import annotations

import click

from experiments.sweep.grid import MEASURES

GRID = click.option(
    "--grid", metavar="NAME", help="Of a catalogue: which grid.  [default: the one that was swept last]"
)
MEASURE = click.option(
    "--measure", type=click.Choice(MEASURES), help="Of a catalogue: of latency.  [default: p99]"
)
