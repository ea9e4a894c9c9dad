"""Figure of `keepalive`: first and later calls of every case."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.reproduce.charts import BAD, GOOD, bar, label_bars
from experiments.reproduce.keepalive_cases import Row

FIRST, LATER = BAD, GOOD
HEIGHT = 0.36


@mpl.rc_context(STYLE)
def keepalive_figure(rows: Sequence[Row]) -> Figure:
    """Figure with two bars for each case, in milliseconds."""
    figure, (axes,) = canvas.blank(1.4 + 0.48 * len(rows), 1, 1)
    rows = rows[::-1]
    for at, row in enumerate(rows):
        for value, expected, interval, place, colour in (
            (row.first, row.first_expected, row.first_interval, at + HEIGHT / 2, FIRST),
            (row.later, row.later_expected, row.later_interval, at - HEIGHT / 2, LATER),
        ):
            bar(axes, place, value, f"{value:.1f}", colour, 0.92 * HEIGHT, interval, expected)
    label_bars(
        axes,
        [row.case.name for row in rows],
        "ms per call: median, its 95 % interval, and round trips plus the time without delay (stroke)",
    )
    axes.set_title("Gain of keep-alive, TLS 1.3 and HTTP/2 for one sequential client", fontweight="bold")
    handles = [
        mpl.patches.Patch(color=FIRST, label="first call"),
        mpl.patches.Patch(color=LATER, label="later calls"),
    ]
    axes.legend(handles=handles, loc="lower right")
    return figure
