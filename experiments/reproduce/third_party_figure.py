"""Figure of latency by percentile for every way to call a provider, with a panel for each group."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import NEGLIGIBLE_WEIGHT
from experiments.reproduce.provider import BEATS, MODES, WITHOUT, ModeResult
from experiments.reproduce.reuse_figure import nines

COLOURS = ("#D55E00", "#E69F00", "#0072B2", "#009E73")
TITLES = {"A": "A: bursts", "B": "B: little traffic, 4 s of keep-alive", "far": "90 ms away, a call in 4 s"}
RANKS = (0.0, 50.0, 90.0, 99.0, 99.9)
SOURCE = {WITHOUT: (400, 600), BEATS: (150, 300)}
"""The source's p50 and p99 in ms; a lower bound for the first, an upper bound for the second."""


@mpl.rc_context(STYLE)
def third_party_figure(stays: Sequence[ModeResult]) -> Figure:
    """Figure with a panel for each group that was measured."""
    groups = [group for group in TITLES if any(stay.mode.group == group for stay in stays)]
    figure, panels = canvas.blank(4.4, 1, len(groups))
    for axes, group in zip(panels, groups, strict=True):
        axes.set_title(TITLES[group], fontweight="bold")
        own = sorted(
            (stay for stay in stays if stay.mode.group == group), key=lambda one: MODES.index(one.mode)
        )
        draw_group(axes, own)
    panels[0].set_ylabel("ms")
    return figure


def draw_group(axes: Axes, stays: Sequence[ModeResult]) -> None:
    """Latency percentiles of one group in milliseconds."""
    colours = COLOURS if len(stays) > 2 else COLOURS[::2]
    for stay, colour in zip(stays, colours, strict=False):
        values = np.sort(np.array([1e3 * one.took for one in stay.made]))
        ranks = 100 * (np.arange(len(values)) + 0.5) / max(1, len(values))
        axes.plot(nines(ranks), values, color=colour, linewidth=1.8, label=stay.mode.name)
        if stay.mode in SOURCE:
            at = nines(np.array([50.0, 99.0]))
            axes.plot(at, SOURCE[stay.mode], "o", color=colour, markersize=7, markerfacecolor="none")
    if any(stay.mode in SOURCE for stay in stays):
        axes.plot([], [], "o", color=NEGLIGIBLE_WEIGHT, markerfacecolor="none", label="source, p50 and p99")
    axes.set_xticks(nines(np.array(RANKS)), [f"{rank:g}" for rank in RANKS])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("per cent of the calls")
    axes.legend(fontsize=8, loc="upper left")
