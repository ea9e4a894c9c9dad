"""Figures of latency and throughput against offered rate, with the knee.

The rate axis is absolute and the same for all entries; a point that did not keep up or is invalid is hollow and grey,
and its line continues through it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from balancer.syntax.printable import with_digits
from experiments.capacity.curve import Curve, Point
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.figures import line_of
from experiments.report.palette import GREY, INK, Competitor


@mpl.rc_context(STYLE)
def load_curves(curve: Curve, field: Sequence[Competitor], slo: float, pooled: float) -> Figure:
    """p99 with confidence intervals on a log axis, and successes per second, both over the offered rate."""
    legend = 0.26 * math.ceil((len(field) + 3) / 5)
    figure, (left, right) = canvas.blank(4.4 + legend, columns=2)
    for one in field:
        draw_curve(left, right, one, curve.of(one.label), curve.knee(one.label))
    ends = [
        1e3 * value for point in curve.points for value in (point.p99.low, point.p99.high, point.p99.ratio)
    ]
    left.axhline(slo * 1e3, color=GREY, linewidth=1, linestyle=(0, (5, 3)))
    canvas.milliseconds(left.yaxis, [*(value for value in ends if math.isfinite(value)), slo * 1e3])
    top = max(point.rate for point in curve.points)
    right.plot([0, top], [0, top], color=GREY, linewidth=1, zorder=0)
    left.set(ylabel="p99 with failures at the deadline, ms (log)")
    right.set(ylabel="answered per second", ylim=(0, None))
    for axes in (left, right):
        axes.set(
            xlabel=f"offered per second (the workers together: {with_digits(pooled, 4)})",
            xlim=(0, top * 1.04),
        )
        axes.axvline(pooled, color=GREY, linewidth=1, linestyle=(0, (1, 2)))
    canvas.legend_above(figure, [*(line_of(one) for one in field), *marks()])
    return figure


def draw_curve(left: Axes, right: Axes, one: Competitor, points: Sequence[Point], knee: Point | None) -> None:
    """Draw one entry in both panels."""
    rates = [point.rate for point in points]
    for axes, values in ((left, [1e3 * p.p99.ratio for p in points]), (right, [p.answered for p in points])):
        axes.plot(rates, values, color=one.colour, linestyle=one.dash, linewidth=1.9)
        for point, value in zip(points, values, strict=True):
            is_sound = point.keeps_up and point.valid
            face, edge = (one.colour, one.colour) if is_sound else ("white", GREY)
            axes.plot(
                [point.rate], [value], "o", markersize=5, markerfacecolor=face, markeredgecolor=edge, zorder=3
            )
    for point in points:
        if math.isfinite(point.p99.low):
            ends = [1e3 * point.p99.low, 1e3 * point.p99.high]
            left.plot([point.rate, point.rate], ends, color=one.colour, linewidth=1.2, alpha=0.8)
    if knee is not None:
        ring: Any = {"markersize": 13, "markerfacecolor": "none", "markeredgewidth": 1.6, "linestyle": ""}
        left.plot([knee.rate], [1e3 * knee.p99.ratio], marker="o", markeredgecolor=one.colour, **ring)


def marks() -> list[Line2D]:
    """Legend handles other than the entries' lines."""
    hollow = Line2D(
        [],
        [],
        linestyle="",
        marker="o",
        markerfacecolor="white",
        color=GREY,
        label="does not keep up",
    )
    ring = Line2D(
        [], [], linestyle="", marker="o", markersize=11, markerfacecolor="none", color=INK, label="knee"
    )
    slo = Line2D([], [], color=GREY, linestyle=(0, (5, 3)), label="SLO")
    return [ring, hollow, slo]
