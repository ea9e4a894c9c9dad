"""Forest plot: paired ratios to the baseline with their confidence intervals.

Ratios are drawn on a log axis, since half and double are equally far from 1; the bands of practical equality and of
noise lie behind, so that nothing inside them looks like a difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.figures import ROW
from experiments.report.palette import GREY, GRID, NOISE, WHITE, Competitor, in_legend
from experiments.stats.comparison import EQUAL_WITHIN, Comparison, Interval, noise

RATIOS = (0.05, 0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20)
NEAR_RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3)
CLOSE_RATIOS = (0.8, 0.9, 1, 1.1, 1.25)


@mpl.rc_context(STYLE)
def forest(
    field: Sequence[Competitor],
    comparisons: Sequence[Comparison],
    floors: dict[str, Interval],
    width: float = canvas.WIDTH,
) -> Figure:
    """Paired ratios to the baseline with their confidence intervals, a panel per measure, rows as in `comparisons`."""
    measures = list(dict.fromkeys(comparison.measure for comparison in comparisons))
    labels = list(dict.fromkeys(comparison.label for comparison in comparisons))
    height = 1.4 + ROW * len(labels)
    figure, panels = canvas.blank(height, columns=len(measures), width=width, sharey=True)
    colours = {one.label: one.colour for one in field}
    for axes, measure in zip(panels, measures, strict=True):
        ours = [comparison for comparison in comparisons if comparison.measure == measure]
        forest_panel(axes, ours, labels, floors.get(measure), colours)
    dot: Any = {"linestyle": "", "marker": "o", "markeredgecolor": GREY}
    handles: list[Line2D | Patch] = [
        Line2D([], [], markerfacecolor=GREY, label="ahead or behind", **dot),
        Line2D([], [], markerfacecolor=WHITE, label="neither", **dot),
        Patch(facecolor=GRID, label="±5 %: practically equal"),
    ]
    if floors:
        handles.append(Patch(facecolor=NOISE, alpha=0.55, label="bias (A/A pair)"))
    canvas.legend_above(figure, handles, columns=3 if width < canvas.WIDTH else 4)
    return figure


def forest_panel(
    axes: Axes,
    comparisons: Sequence[Comparison],
    labels: Sequence[str],
    floor: Interval | None,
    colours: dict[str, str],
) -> None:
    """One measure: a point and its interval per entry, in front of the bands of noise and equality."""
    if floor is not None and floor.blocks:
        axes.axvspan(math.exp(-noise(floor)), math.exp(noise(floor)), color=NOISE, alpha=0.55, zorder=0)
    axes.axvspan(math.exp(-EQUAL_WITHIN), math.exp(EQUAL_WITHIN), color=GRID, alpha=0.8, zorder=1)
    axes.axvline(1.0, color=GREY, linewidth=1)
    for comparison in comparisons:
        y, interval, colour = labels.index(comparison.label), comparison.interval, colours[comparison.label]
        face = colour if comparison.standing in ("ahead", "behind") else WHITE
        axes.plot([interval.low, interval.high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
        axes.plot([interval.ratio], [y], "o", color=colour, markerfacecolor=face, markersize=7)
    canvas.rows(axes, [in_legend(label) for label in labels])
    ratio_axis(axes, comparisons)


def apart(candidates: Sequence[float], low: float, high: float) -> list[float]:
    """Candidates between `low` and `high` whose labels do not touch on a log axis; nearest to 1 first."""
    least = 0.13 * math.log(high / low)
    found: list[float] = []
    for ratio in sorted(candidates, key=lambda one: abs(math.log(one))):
        if low <= ratio <= high and all(abs(math.log(ratio / other)) >= least for other in found):
            found.append(ratio)
    return sorted(found)


def ratio_axis(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    """Log axis of ratios with plain labels."""
    ends = np.array([[c.interval.low, c.interval.high, c.interval.ratio] for c in comparisons])
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    span = max(high, 1) / min(low, 1)
    candidates = RATIOS if span > 4 else NEAR_RATIOS if span > 1.5 else CLOSE_RATIOS
    axes.set_xscale("log")
    axes.set_xlim(min(low / 1.1, 0.9), max(high * 1.1, 1.1))
    canvas.fixed_ticks(axes.xaxis, apart(candidates, *axes.get_xlim()), lambda ratio: f"× {ratio:g}")
    better = "right is better" if comparisons[0].measure == "throughput" else "left is better"
    axes.set_xlabel(f"{comparisons[0].measure} / {comparisons[0].baseline}   ({better})")
