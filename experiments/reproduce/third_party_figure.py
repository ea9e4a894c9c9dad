"""Figure of `third-party`: latency by percentile for every mode, with a panel for each group."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import GREY
from experiments.reproduce.charts import draw_percentiles, label_percentiles, nines
from experiments.reproduce.third_party_modes import HEARTBEATS_B, MODES, PLAIN_B, ModeResult

COLOURS = ("#D55E00", "#E69F00", "#0072B2", "#009E73")
TITLES = {"A": "A: bursts", "B": "B: little traffic, 4 s of keep-alive", "far": "90 ms away, a call in 4 s"}
RANKS = (0.0, 50.0, 90.0, 99.0, 99.9)
SOURCE = {PLAIN_B: (400, 600), HEARTBEATS_B: (150, 300)}
"""The source's p50 and p99 in ms; a lower bound for the first, an upper bound for the second."""


@mpl.rc_context(STYLE)
def third_party_figure(results: Sequence[ModeResult]) -> Figure:
    """Figure with a panel for each group that was measured."""
    results = sorted(results, key=lambda one: MODES.index(one.mode))
    groups = {group: own for group in TITLES if (own := [one for one in results if one.mode.group == group])}
    figure, panels = canvas.blank(4.4, 1, len(groups))
    for axes, (group, own) in zip(panels, groups.items(), strict=True):
        axes.set_title(TITLES[group], fontweight="bold")
        draw_group(axes, own)
    panels[0].set_ylabel("ms")
    return figure


def draw_group(axes: Axes, results: Sequence[ModeResult]) -> None:
    """Latency percentiles of one group in milliseconds."""
    colours = COLOURS if len(results) > 2 else COLOURS[::2]
    for one, colour in zip(results, colours, strict=False):
        draw_percentiles(axes, [answer.took for answer in one.answers], colour, one.mode.name)
        if one.mode in SOURCE:
            axes.plot(
                nines((50.0, 99.0)), SOURCE[one.mode], "o", color=colour, markersize=7, markerfacecolor="none"
            )
    if any(one.mode in SOURCE for one in results):
        axes.plot([], [], "o", color=GREY, markerfacecolor="none", label="source, p50 and p99")
    label_percentiles(axes, RANKS)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="upper left")
