"""Figures of workers: share of the answers, service time per request.

Small multiples, one panel per entry in the scenario's order, with a common vertical axis. Dots are rasterised inside
the SVG to keep the file small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.figures import ROW, entry_rows
from experiments.report.palette import (
    GREY,
    INK,
    MAX_DRAWN,
    ON_DARK,
    ON_LIGHT,
    Competitor,
    place_handles,
    region_colours,
    worker_colours,
)
from experiments.run_data import Samples
from experiments.stats.measures import share_per_region, share_per_worker

READABLE_SHARE = 0.07
"""Minimum share (0..1) of a bar segment that carries a number."""

MOST_DOTS = 10_000
"""Maximum number of drawn successes per panel, and of drawn failures; of more, some are left out evenly."""

MAX_FIGURE_DOTS = 50_000
"""The same for all panels of a figure together."""


@mpl.rc_context(STYLE)
def worker_share(field: Sequence[Competitor]) -> Figure:
    """Stacked bars of the share of answers per worker, a hue per region; with too many workers, per region."""
    places = list(dict.fromkeys(place for one in field for run in one.runs for place in run.facts.places))
    figure, (axes,) = canvas.blank(1.4 + ROW * len(field))
    colours = worker_colours(places)
    if len(places) > MAX_DRAWN:
        colours = list(region_colours(places).values())
    for y, one in enumerate(field):
        shares = share_per_worker(one.runs)
        by_region = share_per_region(shares, places)
        parts = by_region.values() if len(places) > MAX_DRAWN else [shares.get(p.worker, 0.0) for p in places]
        share_bar(axes, y, list(parts), colours)
    axes.set_xlim(0, 100)
    axes.set_xlabel("part of the answered requests, %")
    entry_rows(axes, field)
    axes.grid(visible=False)
    canvas.legend_above(figure, place_handles(places), columns=6)
    return figure


def share_bar(axes: Axes, y: int, shares: Sequence[float], colours: Sequence[str]) -> None:
    """Bar of one entry, with numbers in the segments that are wide enough."""
    left = 0.0
    for share, colour in zip(shares, colours, strict=True):
        axes.barh(y, 100 * share, left=100 * left, height=0.7, color=colour, edgecolor="white", linewidth=1)
        if share >= READABLE_SHARE:
            middle = 100 * (left + share / 2)
            tint = ON_DARK if is_dark(colour) else ON_LIGHT
            axes.text(middle, y, f"{100 * share:.0f}", ha="center", va="center", color=tint, fontsize=9)
        left += share


def is_dark(colour: str) -> bool:
    """Whether white text is more readable on the colour than ink (relative luminance by Rec. 709)."""
    red, green, blue = bytes.fromhex(colour[1:])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 140


@mpl.rc_context(STYLE)
def service_by_request(field: Sequence[Competitor]) -> Figure:
    """The source report's plot: service time of the requests of one run against their numbers, by worker."""
    figure, panels = multiples(field, "request number", "service time, ms")
    places, most = field[0].runs[0].facts.places, most_dots(field)
    for axes, one in zip(panels, field, strict=True):
        draw_requests(axes, one, thinned(one.runs[0].samples, most), worker_colours(places))
    panels[0].set_ylim(bottom=0)
    handles = place_handles(places)
    failed = Line2D([], [], linestyle="", marker="x", color=GREY, label="failed")
    canvas.legend_above(figure, [*handles, *([failed] if has_failures(field) else [])], columns=7)
    return figure


def draw_requests(axes: Axes, one: Competitor, samples: Samples, colours: Sequence[str]) -> None:
    """Dots for successes by worker, in the entry's colour where the worker is unknown; crosses for failed requests."""
    for index, colour in [(-1, one.colour), *enumerate(colours)]:
        mine = samples.ok & (samples.worker == index)
        number, taken = samples.sequence[mine], samples.service_time[mine] * 1e3
        axes.scatter(number, taken, s=4, color=colour, linewidths=0, antialiased=False, rasterized=True)
    failed = ~samples.ok
    ended = np.nan_to_num(samples.service_time[failed] * 1e3)
    axes.scatter(
        samples.sequence[failed],
        ended,
        s=26,
        marker="x",
        color=GREY,
        linewidths=1.2,
        zorder=3,
        rasterized=True,
    )


def most_dots(field: Sequence[Competitor]) -> int:
    """Maximum number of drawn successes in each panel of these entries."""
    return min(MOST_DOTS, MAX_FIGURE_DOTS // max(1, len(field)))


def thinned(samples: Samples, most: int) -> Samples:
    """At most `most` successes, and as many failures, so that a rare failure stays visible."""
    groups = [np.flatnonzero(mine) for mine in (samples.ok, ~samples.ok)]
    return samples.rows(np.sort(np.concatenate([group[:: step_of(len(group), most)] for group in groups])))


def step_of(count: int, most: int) -> int:
    """Thinning step: every how many of `count` requests one is drawn."""
    return max(1, math.ceil(count / most))


def thinning(field: Sequence[Competitor]) -> str:
    """Caption sentence about the thinning; empty if there is none."""
    most = most_dots(field)
    kinds = [run.samples.ok == is_ok for one in field for run in one.runs[:1] for is_ok in (True, False)]
    step = max((step_of(int(np.count_nonzero(kind)), most) for kind in kinds), default=1)
    return "" if step == 1 else f" There are many: of the largest panel one request in {step} is drawn."


def multiples(field: Sequence[Competitor], xlabel: str, ylabel: str) -> tuple[Figure, list[Axes]]:
    """A panel for each entry, titled with its name, grey when it is invalid. Axes are common to all.

    They are labelled below the lowest panel of each column, and left of the first column.
    """
    columns = min(canvas.COLUMNS, len(field))
    rows = math.ceil(len(field) / columns)
    figure, panels = canvas.blank(1.0 + rows * 2.05, rows, columns, sharex=True, sharey=True)
    for axes in panels[len(field) :]:
        axes.set_visible(False)
    panels = panels[: len(field)]
    for axes, one in zip(panels, field, strict=True):
        axes.set_title(canvas.folded(one.name), fontweight="bold", color=INK if one.is_valid else GREY)
    for axes in panels[-columns:]:
        axes.tick_params(axis="x", labelbottom=True)
        axes.set_xlabel(xlabel)
    for axes in panels[::columns]:
        axes.set_ylabel(ylabel)
    return figure, panels


def has_failures(field: Sequence[Competitor]) -> bool:
    """Whether any run shown has a failed request."""
    return any(not run.samples.ok.all() for one in field for run in one.runs[:1])
