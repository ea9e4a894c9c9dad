"""Bar charts of the keep-alive matrix and of ways to remove fields. Draws rows and computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import INK
from experiments.reproduce.keepalive_matrix import Row
from experiments.reproduce.removal import Cost

FIRST, LATER = "#D55E00", "#0072B2"
HEIGHT = 0.36


@mpl.rc_context(STYLE)
def matrix_figure(rows: Sequence[Row]) -> Figure:
    """First and later calls of every cell, in milliseconds."""
    figure, (axes,) = canvas.blank(1.4 + 0.48 * len(rows), 1, 1)
    for at, row in enumerate(reversed(rows)):
        for value, expected, (low, high), place, colour in (
            (row.first, row.first_expected, row.first_interval, at + HEIGHT / 2, FIRST),
            (row.later, row.later_expected, row.later_interval, at - HEIGHT / 2, LATER),
        ):
            error = [[max(0.0, value - low)], [max(0.0, high - value)]]
            axes.barh(place, value, HEIGHT * 0.92, color=colour, xerr=error, ecolor=INK)
            axes.plot([expected] * 2, [place - HEIGHT / 2, place + HEIGHT / 2], color=INK, linewidth=2)
            axes.annotate(
                f"{value:.1f}", (high, place), (6, 0), textcoords="offset points", va="center", fontsize=8
            )
    axes.set_yticks(range(len(rows)), [row.cell.name for row in reversed(rows)])
    axes.set_xlabel("ms per call: median, its 95 % interval, and the trips upon what it takes near (stroke)")
    axes.set_title("What keep-alive, TLS 1.3 and HTTP/2 are worth to one caller", fontweight="bold")
    axes.grid(visible=False, axis="y")
    handles = [
        mpl.patches.Patch(color=FIRST, label="first call"),
        mpl.patches.Patch(color=LATER, label="later calls"),
    ]
    axes.legend(handles=handles, loc="lower right")
    return figure


@mpl.rc_context(STYLE)
def ways_figure(costs: Sequence[Cost]) -> Figure:
    """Cost of each way in microseconds."""
    figure, (axes,) = canvas.blank(1.4 + 0.5 * len(costs), 1, 1)
    for at, one in enumerate(reversed(costs)):
        low, high = one.interval
        error = [[max(0.0, one.micros - low)], [max(0.0, high - one.micros)]]
        axes.barh(at, one.micros, 0.6, color=LATER, xerr=error, ecolor=INK)
        if one.theirs is not None:
            axes.plot([one.theirs] * 2, [at - 0.4, at + 0.4], color=FIRST, linewidth=3)
        axes.annotate(
            f"{one.micros:.2f}", (high, at), (6, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_yticks(range(len(costs)), [one.way for one in reversed(costs)])
    axes.set_xlabel("µs per request: median and its 95 % interval; stroke: the source's, of compiled code")
    axes.set_title("What it takes to remove internal fields", fontweight="bold")
    axes.grid(visible=False, axis="y")
    return figure
