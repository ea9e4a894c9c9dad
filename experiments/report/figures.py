"""Figures that compare the entries: latency quantiles, latency distribution, throughput, paired ratios.

Each function takes the results or the summary and returns a figure. Axes carry units; failures, and values
that rest on too few samples, are marked and stay visible.
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

from balancer.syntax.printable import with_digits
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import GREY, GRID, INK, INVALID, NOISE, WHITE, Competitor, in_legend
from experiments.run_data import Ints
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import EQUAL_WITHIN, Comparison, Interval, noise
from experiments.stats.measures import LEAST_BEYOND, quantiles, requests_beside, success_latency, throughput

QUANTILE_MARKS = {50.0: "o", 75.0: "|", 90.0: "|", 95.0: "s", 99.0: "D", 99.9: "^", 100.0: "x"}
ROW = 0.42
"""Height in inches of one entry in a horizontal figure."""

TICK = 0.15
"""Half the height of a block's tick, as a part of a row."""

MOST_STEPS = 500
"""Maximum number of steps of a distribution, for each of its two axes, which are 360 points long: a step per request
would take gigabytes for millions of requests, without a visible difference.
"""


@mpl.rc_context(STYLE)
def latency_quantiles(field: Sequence[Competitor]) -> Figure:
    """p50 to max of every entry on one log axis, entries as rows."""
    figure, (axes,) = canvas.blank(1.5 + ROW * len(field))
    shown = [list(quantiles(success_latency(one.runs))) for one in field]
    shown = [[q for q in row if not q.hidden and math.isfinite(q.seconds)] for row in shown]
    values = [quantile.seconds * 1e3 for row in shown for quantile in row]
    for y, (one, row) in enumerate(zip(field, shown, strict=True)):
        axes.plot([q.seconds * 1e3 for q in row], [y] * len(row), color=one.colour, linewidth=2.2, alpha=0.45)
        for quantile in row:
            mark_quantile(axes, one, quantile.seconds * 1e3, y, quantile.percent, quantile.few)
    canvas.milliseconds(axes.xaxis, values)
    axes.set_xlabel("latency, ms (log)")
    entry_rows(axes, field)
    canvas.legend_above(figure, quantile_legend(), columns=7)
    return figure


def mark_quantile(axes: Axes, one: Competitor, x: float, y: float, percent: float, few: bool) -> None:
    """Draw one quantile; hollow grey when fewer than 100 samples lie beyond it."""
    mark = QUANTILE_MARKS[percent]
    edge = GREY if few and mark not in "|x" else one.colour
    face = WHITE if few else one.colour
    size = 9 if mark == "|" else 7
    axes.plot(
        [x], [y], mark, markersize=size, markeredgecolor=edge, markerfacecolor=face, markeredgewidth=1.5
    )


def quantile_legend() -> list[Line2D]:
    """Legend of the quantile markers, including the hollow one."""
    names = {50.0: "p50", 75.0: "p75, p90", 95.0: "p95", 99.0: "p99", 99.9: "p99.9", 100.0: "max"}
    solid = [
        Line2D([], [], linestyle="", marker=QUANTILE_MARKS[percent], color=INK, label=name)
        for percent, name in names.items()
    ]
    few: Any = {"marker": "D", "markerfacecolor": "white", "color": GREY, "label": "few samples"}
    return [*solid, Line2D([], [], linestyle="", **few)]


def entry_rows(axes: Axes, field: Sequence[Competitor]) -> None:
    """Label the vertical axis with the entries, first on top."""
    canvas.rows(axes, [one.name.replace(" (", "\n(") for one in field])
    for tick, one in zip(axes.get_yticklabels(), field, strict=True):
        tick.set_color(INK if one.is_valid else GREY)


@mpl.rc_context(STYLE)
def latency_distribution(field: Sequence[Competitor]) -> Figure:
    """Cumulative distribution over a log axis (left), and percentile spectrum of the tail (right)."""
    legend = 0.26 * math.ceil(len(field) / 5)
    figure, (left, right) = canvas.blank(4.2 + legend, columns=2)
    ends = [value for one in field for value in draw_distribution(left, right, one)]
    canvas.milliseconds(left.xaxis, ends)
    canvas.milliseconds(right.yaxis, ends)
    left.set(xlabel="latency, ms (log)", ylabel="requests answered by then, %", ylim=(0, 101))
    right.set(xlabel="percentile of all requests", ylabel="latency, ms (log)")
    spectrum_axis(right, max(requests_beside(success_latency(one.runs), one.runs) for one in field))
    canvas.legend_above(figure, [line_of(one) for one in field])
    return figure


def draw_distribution(left: Axes, right: Axes, one: Competitor) -> list[float]:
    """Draw sorted latencies over the fraction of all requests; failures keep the curve below 100 %.

    Returns the least and the greatest latency in ms, if there are any.
    """
    latency = success_latency(one.runs)
    total = requests_beside(latency, one.runs)
    latency.sort()
    latency *= 1e3
    part = np.arange(1, len(latency) + 1) / total
    line: Any = {"color": one.colour, "linestyle": one.dash, "linewidth": 1.9}
    even, dense = even_steps(len(latency)), dense_steps(len(latency))
    left.step(latency[even], 100 * part[even], where="post", **line)
    dense = dense[part[dense] <= 1 - LEAST_BEYOND / total]
    right.step(1 / (1 - part[dense]), latency[dense], where="post", **line)
    return [*latency[:1], *latency[-1:]]


def even_steps(count: int) -> Ints:
    """Indices of the sorted values to draw, evenly spaced: all, or of many some hundred."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_STEPS)).astype(np.int64))


def dense_steps(count: int) -> Ints:
    """Indices of the sorted values to draw, ever denser towards the end, for the tail's axis."""
    if count <= MOST_STEPS:
        return np.arange(count)
    return np.unique(count - np.geomspace(1, count, MOST_STEPS).astype(np.int64))


def spectrum_axis(axes: Axes, total: float) -> None:
    """Axis of percentiles spaced by the number of nines, as far as the samples reach."""
    percents = [
        p for p in (0.0, 50.0, 90.0, 99.0, 99.9, 99.99) if p == 0 or total * (1 - p / 100) >= LEAST_BEYOND
    ]
    axes.set_xscale("log")
    places = [1 / (1 - p / 100) for p in percents]
    canvas.fixed_ticks(axes.xaxis, places, lambda place: f"{100 * (1 - 1 / place):.6g}")
    axes.set_xlim(1, max(2.0, total / LEAST_BEYOND))


def line_of(one: Competitor) -> Line2D:
    return Line2D([], [], color=one.colour, linestyle=one.dash, linewidth=2.2, label=one.name)


@mpl.rc_context(STYLE)
def throughput_bars(field: Sequence[Competitor]) -> Figure:
    """Bars of successes per second, followed by failures per second in grey, with a tick per block."""
    figure, (axes,) = canvas.blank(1.1 + ROW * len(field))
    totals = [
        sum(run.samples.requests for run in one.runs) / sum(run.span for run in one.runs) for one in field
    ]
    for y, (one, total) in enumerate(zip(field, totals, strict=True)):
        throughput_bar(axes, y, one, total)
    axes.set_xlim(0, max(totals) * 1.16)
    axes.set_xlabel("successes per second" + ", a tick per block" * any(len(one.runs) > 1 for one in field))
    entry_rows(axes, field)
    if max(total - throughput(one.runs) for one, total in zip(field, totals, strict=True)) > 0:
        failed = Patch(facecolor=INVALID, hatch="xxx", edgecolor="white", label="failed")
        canvas.legend_above(figure, [failed])
    return figure


def throughput_bar(axes: Axes, y: int, one: Competitor, total: float) -> None:
    """One entry: bar of successes, bar of failures, the number, and a tick per block."""
    rate = throughput(one.runs)
    axes.barh(y, rate, height=0.66, color=one.colour, hatch=one.hatch, ec="white", lw=0)
    axes.barh(y, total - rate, left=rate, height=0.66, color=INVALID, hatch="xxx", ec="white", lw=0)
    blocks = [throughput([run]) for run in one.runs]
    end, text = max(total, *blocks), rate_text(rate, total)
    axes.annotate(text, (end, y), (6, 0), textcoords="offset points", va="center")
    if len(one.runs) > 1:
        across = np.array([[block, block, math.nan] for block in blocks]).ravel()
        along = np.tile([y - TICK, y + TICK, math.nan], len(blocks))
        axes.plot(
            across, along, color=INK, linewidth=1, alpha=0.7
        )  # one path: a mark each takes ten times the bytes


def rate_text(rate: float, total: float) -> str:
    """Label such as `187/s`, with the failed part if there is one."""
    if total - rate < 1e-9:
        return f"{with_digits(rate, 2)}/s"
    return f"{with_digits(rate, 2)}/s, {with_digits(100 * (1 - rate / total), 2)} % KO"


RATIOS = (0.7, 1.5, 3, *(step * 10**power for power in range(-4, 5) for step in (1, 2, 5)))
NEAR_RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3)
CLOSE_RATIOS = (0.8, 0.9, 1, 1.1, 1.25)


@mpl.rc_context(STYLE)
def forest(
    field: Sequence[Competitor],
    comparisons: Sequence[Comparison],
    floors: dict[str, Interval],
    width: float = canvas.WIDTH,
) -> Figure:
    """Paired ratios to the baseline with their intervals, rows as in `comparisons`, a panel per measure that judges."""
    measures = list(dict.fromkeys(comparison.judged_by for comparison in comparisons))
    width = width if len(measures) == 1 else canvas.WIDTH
    labels = list(dict.fromkeys(comparison.label for comparison in comparisons))
    height = 1.4 + ROW * len(labels)
    figure, panels = canvas.blank(height, columns=len(measures), width=width, sharey=True)
    colours = {one.label: one.colour for one in field}
    for axes, measure in zip(panels, measures, strict=True):
        ours = [comparison for comparison in comparisons if comparison.judged_by == measure]
        forest_panel(axes, ours, labels, floors.get(measure), colours)
    dot: Any = {"linestyle": "", "marker": "o", "markeredgecolor": GREY}
    handles: list[Line2D | Patch] = [
        Line2D([], [], markerfacecolor=GREY, label="ahead or behind", **dot),
        Line2D([], [], markerfacecolor=WHITE, label="neither", **dot),
        Patch(facecolor=GRID, label="±5 %: practically equal"),
    ]
    if floors:
        handles.append(Patch(facecolor=NOISE, alpha=0.55, label="bias (A/A pair)"))
    if any(comparison.at_deadline for comparison in comparisons):
        handles.append(Line2D([], [], color=GREY, linestyle="", marker="<", label="bound"))
    canvas.legend_above(figure, handles, columns=3 if width < canvas.WIDTH else 5)
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
        mark = "o" if not comparison.at_deadline else "<" if interval.ratio < 1 else ">"
        if not comparison.at_deadline:
            axes.plot([interval.low, interval.high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
        axes.plot([interval.ratio], [y], mark, color=colour, markerfacecolor=face, markersize=7)
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
    """Log axis of ratios with plain labels: half and double are equally far from 1."""
    ends = np.array([[c.interval.low, c.interval.high, c.interval.ratio] for c in comparisons])
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    span = max(high, 1) / min(low, 1)
    candidates = RATIOS if span > 4 else NEAR_RATIOS if span > 1.5 else CLOSE_RATIOS
    axes.set_xscale("log")
    axes.set_xlim(min(low / 1.1, 0.9), max(high * 1.1, 1.1))
    canvas.fixed_ticks(axes.xaxis, apart(candidates, *axes.get_xlim()), lambda ratio: f"× {ratio:g}")
    judged = comparisons[0].judged_by
    better = "right is better" if judged == "throughput" else "left is better"
    ratio = f"{judged.replace(GOODPUT, 'odds of a miss')} / {comparisons[0].baseline}"
    between = "   " if len(ratio) < canvas.LONGEST_LINE - 10 else "\n"
    axes.set_xlabel(f"{canvas.folded(ratio)}{between}({better})")
