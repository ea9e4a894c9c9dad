"""Figure of throughput over time by region, for access logs. A request counts when it ends."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import INK, INVALID, Competitor
from experiments.run_data import Floats

BINS = 60


@mpl.rc_context(STYLE)
def throughput_over_time(whole: Competitor, regions: Sequence[Competitor]) -> Figure:
    """Successes per second in total and by region, and failures per second in grey."""
    figure, (axes,) = canvas.blank(3.2)
    samples = whole.runs[0].samples
    edges = np.linspace(0, max(samples.span, 1e-3), BINS + 1)
    if not samples.ok.all():
        step(axes, samples.ended_at[~samples.ok], edges, INVALID, filled=True)
    for one in regions if len(regions) > 1 else ():
        part = one.runs[0].samples
        step(axes, part.ended_at[part.ok], edges, one.colour)
    step(axes, samples.ended_at[samples.ok], edges, INK)
    axes.set(xlabel="seconds from the first request", ylabel="requests per second", xlim=(0, edges[-1]))
    axes.set_ylim(bottom=0)
    named = [("all successes", INK), *((one.label, one.colour) for one in regions if len(regions) > 1)]
    shown = [*named, *([] if samples.ok.all() else [("failed", INVALID)])]
    handles = [Line2D([], [], color=colour, linewidth=2.2, label=name) for name, colour in shown]
    canvas.legend_above(figure, handles)
    return figure


def step(axes: Axes, ended_at: Floats, edges: Floats, colour: str, filled: bool = False) -> None:
    """Draw a rate for each bin, as steps."""
    counts, _ = np.histogram(ended_at, edges)
    rate = counts / np.diff(edges)
    if filled:
        axes.stairs(rate, edges, color=colour, alpha=0.5, fill=True)
    else:
        axes.stairs(rate, edges, baseline=None, color=colour, linewidth=1.8)
