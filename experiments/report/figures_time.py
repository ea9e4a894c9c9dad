"""Figures over the time of a run: tail latency with the events behind it, and requests in flight per worker.

All entries share one vertical axis, and one time axis where runs are equally long; every event of the scenario is
shaded where it occurred.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.figures_workers import has_failures, label_left, multiples, outer_bottom, title
from experiments.report.palette import (
    GREY,
    INK,
    INVALID,
    MOST_DRAWN,
    MOST_NAMED,
    Competitor,
    place_handles,
    region_colours,
    worker_colours,
)
from experiments.scenario.scenario import Scenario
from experiments.stats.measures import percentile
from experiments.stats.samples import Floats, Place, Run, Samples

SHADE = "#F6DDB0"
MOST_BINS = 40
PER_BIN = 200
"""Minimum number of requests per point of the tail; with fewer requests there are fewer bins."""

INSTANTS = 400
"""Points in time at which requests in flight are counted."""


@mpl.rc_context(STYLE)
def tail_over_time(field: Sequence[Competitor], scenario: Scenario) -> Figure:
    """p99 and median by scheduled instant, all valid runs of an entry pooled, events shaded."""
    figure, panels = multiples(field, sharex=is_alike(scenario))
    drawn: list[float] = []
    for axes, one in zip(panels, field, strict=False):
        edges = bin_edges(field if is_alike(scenario) else [one])
        drawn += draw_tail(axes, one, edges)
        frame(axes, one, scenario, float(edges[-1]))
    canvas.milliseconds(panels[0].yaxis, drawn)
    for axes in outer_bottom(panels, len(field)):
        axes.set_xlabel("seconds from the start of the run")
    label_left(panels, "latency, ms (log)")
    canvas.legend_above(figure, tail_legend(field, scenario))
    return figure


def is_alike(scenario: Scenario) -> bool:
    """Whether all runs take the same time; a closed loop ends with its requests."""
    return scenario.load.mode == "open"


def frame(axes: Axes, one: Competitor, scenario: Scenario, end: float) -> None:
    """Draw the events, the entry's name as title, and a time axis from 0 to `end`."""
    shade_events(axes, scenario, end)
    title(axes, one)
    axes.set_xlim(0, end)


def tail_legend(field: Sequence[Competitor], scenario: Scenario) -> list[Line2D | Patch]:
    """Legend of the lines, ticks and shades that occur."""
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=INK, linewidth=2, label="p99"),
        Line2D([], [], color=INK, linewidth=1, alpha=0.6, label="median"),
    ]
    if has_failures(field):
        handles.append(Line2D([], [], linestyle="", marker="|", color=INVALID, label="failed request"))
    if scenario.events:
        handles.append(Patch(facecolor=SHADE, label="event of the scenario"))
    return handles


def bin_edges(field: Sequence[Competitor]) -> Floats:
    """Edges of equal time bins over the longest run, as many as the entry with the fewest requests fills."""
    end = max(float(run.samples.scheduled_at.max()) for one in field for run in one.runs)
    fewest = min(sum(len(run.samples) for run in one.runs) for one in field)
    return np.linspace(0, max(end, 1e-3), max(4, min(MOST_BINS, fewest // PER_BIN)) + 1)


def draw_tail(axes: Axes, one: Competitor, edges: Floats) -> list[float]:
    """Draw p99, median and a tick per failure of one entry; returns the values drawn, in ms."""
    due = np.concatenate([run.samples.scheduled_at[run.samples.ok] for run in one.runs])
    taken = np.concatenate([run.samples.latency[run.samples.ok] for run in one.runs]) * 1e3
    which = np.clip(np.digitize(due, edges) - 1, 0, len(edges) - 2)
    filled = [index for index in range(len(edges) - 1) if np.any(which == index)]
    middle = (edges[:-1] + edges[1:])[filled] / 2
    tail = [percentile(taken[which == index], 99) for index in filled]
    median = [percentile(taken[which == index], 50) for index in filled]
    axes.plot(middle, tail, color=one.colour, linestyle=one.dash, linewidth=2, marker="o", markersize=2.5)
    axes.plot(middle, median, color=one.colour, linewidth=1, alpha=0.6)
    failed = np.concatenate([run.samples.scheduled_at[~run.samples.ok] for run in one.runs])
    top = axes.get_xaxis_transform()
    axes.plot(
        failed, np.full(len(failed), 0.97), "|", color=INVALID, markersize=8, transform=top, rasterized=True
    )
    return [*tail, *median]


def shade_events(axes: Axes, scenario: Scenario, end: float) -> None:
    """Shade each event from its beginning to its end, in measured seconds, with a label at the bottom."""
    for number, event in enumerate(scenario.events):
        begins = event.at * scenario.time_scale
        ends = end if event.lasts is None else (event.at + event.lasts) * scenario.time_scale
        axes.axvspan(begins, min(ends, end), color=SHADE, alpha=0.7, linewidth=0, zorder=0)
        axes.annotate(
            f"{event.kind} {event.target}",
            (begins, 0.02 + 0.09 * (number % 3)),
            xycoords=("data", "axes fraction"),
            xytext=(2, 0),
            textcoords="offset points",
            fontsize=7,
            color=GREY,
        )


@mpl.rc_context(STYLE)
def in_flight_per_worker(field: Sequence[Competitor], scenario: Scenario) -> Figure:
    """Requests in flight per worker over the first run of each entry.

    One line per worker; with too many workers, the median of each region in a band from least to most.
    """
    figure, panels = multiples(field, sharex=is_alike(scenario))
    places = field[0].runs[0].facts.places
    for axes, one in zip(panels, field, strict=False):
        end = max(other.runs[0].samples.span for other in (field if is_alike(scenario) else [one]))
        draw_in_flight(axes, one.runs[0], places, end)
        frame(axes, one, scenario, end)
    for axes in outer_bottom(panels, len(field)):
        axes.set_xlabel("seconds from the start of the run")
    label_left(panels, "requests in flight")
    panels[0].set_ylim(bottom=0)
    canvas.legend_above(figure, place_handles(places), columns=6)
    return figure


def draw_in_flight(axes: Axes, run: Run, places: Sequence[Place], end: float) -> None:
    """Draw one run; lines are thin where there are many."""
    instants = np.linspace(0, end, INSTANTS)
    lying = in_flight(run.samples, len(places), instants)
    if len(places) <= MOST_DRAWN:
        width = 1.5 if len(places) <= MOST_NAMED else 0.6
        for line, colour in zip(lying, worker_colours(places), strict=True):
            axes.plot(instants, line, color=colour, linewidth=width, drawstyle="steps-post", alpha=0.9)
        return
    for region, colour in region_colours(places).items():
        least, middle, most = np.percentile(
            lying[[place.region == region for place in places]], [0, 50, 100], axis=0
        )
        axes.fill_between(instants, least, most, step="post", color=colour, alpha=0.22, linewidth=0)
        axes.plot(instants, middle, color=colour, linewidth=1.5, drawstyle="steps-post")


def in_flight(samples: Samples, workers: int, instants: Floats) -> Floats:
    """Requests sent to each worker that have not ended at each instant; shape (workers, instants)."""
    order = np.argsort(samples.worker, kind="stable")
    bounds = np.searchsorted(samples.worker[order], np.arange(workers + 1))
    lying = np.empty((workers, len(instants)))
    for index in range(workers):
        mine = order[bounds[index] : bounds[index + 1]]
        sent, ended = np.sort(samples.sent_at[mine]), np.sort(samples.ended_at[mine])
        begun = np.searchsorted(sent[np.isfinite(sent)], instants, side="right")
        lying[index] = begun - np.searchsorted(ended[np.isfinite(ended)], instants, side="right")
    return lying
