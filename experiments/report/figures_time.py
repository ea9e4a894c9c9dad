"""Figures over the time of a run: tail latency with the events behind it, and requests in flight per worker.

All entries share one vertical and one time axis; every event of the scenario is shaded where it occurred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.figures_workers import has_failures, multiples
from experiments.report.palette import (
    INK,
    INVALID,
    MAX_DRAWN,
    MAX_NAMED,
    SHADE,
    Competitor,
    place_handles,
    region_colours,
    worker_colours,
)
from experiments.run_data import Floats, Place, Run, Samples
from experiments.scenario.events import Event
from experiments.stats.measures import LEAST_BEYOND, TAILS, deadline_mapped, has_few_beyond, percentile

MOST_BINS, LEAST_BINS = 40, 12
"""Number of points of a line over time."""

MOST_RATES, REQUESTS_PER_RATE = 120, 100
"""Number of points of a rate over time, and of requests of each: a rate needs fewer than a percentile."""

LABEL, LABEL_ROWS = 0.1, 3
"""Height of an event's label as a part of the panel, and number of rows of labels."""

MOST_TICKS = 10_000
"""Places on a time axis at which failures are drawn: some twenty in each dot of a picture."""

MOST_INSTANTS, LEAST_INSTANTS, MOST_POINTS = 240, 60, 16_000
"""Points in time at which requests in flight are counted: of a panel, and of all lines of the figure together."""


Shading = tuple[float, float, str]
"""Begin, end and name of an event in measured seconds; one without an end is infinite."""


def shadings(events: Sequence[Event], scale: float) -> list[Shading]:
    """The events of a scenario as they are shaded."""
    return [
        (
            event.at * scale,
            np.inf if event.lasts is None else (event.at + event.lasts) * scale,
            f"{event.kind} {event.target}",
        )
        for event in events
    ]


@dataclass(frozen=True, slots=True)
class Bins:
    """Equal time bins over the longest run, and the highest percentile that they support in every entry.

    `is_mapped` if a failure counts as slow as the deadline, which a log does not know.
    """

    percent: float
    edges: Floats
    is_mapped: bool = True

    def latencies(self, run: Run) -> tuple[Floats, Floats]:
        """Scheduled instants and latencies in seconds of the requests that count."""
        if self.is_mapped:
            return run.samples.scheduled_at, deadline_mapped(run)
        ok = run.samples.ok
        return run.samples.scheduled_at[ok], run.samples.latency[ok]

    def percentiles(self, one: Competitor, percents: Sequence[float]) -> list[Floats]:
        """Percentiles of an entry's latency in ms by bin; nan in a bin with too few requests."""
        counted = [self.latencies(run) for run in one.runs]
        due, taken = (np.concatenate(column) for column in zip(*counted, strict=True))
        count = len(self.edges) - 1
        which = np.clip(np.digitize(due, self.edges) - 1, 0, count - 1)
        parts = [1e3 * taken[which == index] for index in range(count)]
        return [np.array([shown(part, percent) for part in parts]) for percent in percents]


def middles(edges: Floats) -> Floats:
    return np.asarray((edges[:-1] + edges[1:]) / 2)


def bins_of(field: Sequence[Competitor], is_mapped: bool = True) -> Bins | None:
    """Bins for `tail_over_time`; None if the requests do not suffice for a line."""
    end = max(float(run.samples.scheduled_at.max()) for one in field for run in one.runs)
    counts = [
        [len(run.samples) if is_mapped else int(run.samples.ok.sum()) for run in one.runs] for one in field
    ]
    fewest = min(map(sum, counts))
    for percent in TAILS:
        count = int(fewest * (1 - percent / 100) / LEAST_BEYOND)
        if count >= LEAST_BINS:
            return Bins(percent, np.linspace(0, max(end, 1e-3), min(MOST_BINS, count) + 1), is_mapped)
    return None


@mpl.rc_context(STYLE)
def tail_over_time(field: Sequence[Competitor], events: Sequence[Shading], bins: Bins) -> Figure:
    """Tail percentile and median by scheduled instant, all valid runs of an entry pooled, events shaded.

    A failure is as slow as the deadline: without it, a policy whose slow requests all time out would look fast.
    """
    figure, panels = multiples(field, "seconds from the start of the run", "latency, ms (log)")
    drawn: list[float] = []
    end = time_end(field)
    for axes, one in zip(panels, field, strict=True):
        drawn += draw_tail(axes, one, bins)
        shade_events(axes, events, end)
    canvas.milliseconds(panels[0].yaxis, drawn)
    leave_room(panels[0], len(events))
    canvas.legend_above(figure, tail_legend(field, bool(events), bins.percent))
    return figure


def time_end(field: Sequence[Competitor]) -> float:
    """End of the time axis of every figure over time: the last end of a request, in seconds."""
    return max(float(np.nanmax(run.samples.ended_at)) for one in field for run in one.runs)


def leave_room(axes: Axes, events: int) -> None:
    """Raise the upper limit of the vertical axis, so that the labels of events stand above the lines."""
    low, high = axes.get_ylim()
    part = 1 - LABEL * min(events, LABEL_ROWS)
    is_log = axes.get_yscale() == "log" and low > 0
    axes.set_ylim(low, low * (high / low) ** (1 / part) if is_log else low + (high - low) / part)


def tail_legend(field: Sequence[Competitor], has_events: bool, percent: float) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=INK, linewidth=2, label=f"p{percent:g}"),
        Line2D([], [], color=INK, linewidth=1, alpha=0.6, label="median"),
    ]
    if has_failures(field):
        handles.append(Line2D([], [], linestyle="", marker="|", color=INVALID, label="failed request"))
    if has_events:
        handles.append(Patch(facecolor=SHADE, label="event of the scenario"))
    return handles


def draw_tail(axes: Axes, one: Competitor, bins: Bins) -> list[float]:
    """Draw tail, median and a tick per failure of one entry; returns the values drawn, in ms.

    A bin with too few requests for the percentile leaves a gap in its line.
    """
    middle = middles(bins.edges)
    tail, median = bins.percentiles(one, (bins.percent, 50.0))
    axes.plot(middle, tail, color=one.colour, linestyle=one.dash, linewidth=2, marker="o", markersize=2.5)
    axes.plot(middle, median, color=one.colour, linewidth=1, alpha=0.6)
    failed = np.concatenate([run.samples.scheduled_at[~run.samples.ok] for run in one.runs])
    draw_failures(axes, failed, float(bins.edges[-1]))
    return [value for value in (*tail, *median) if math.isfinite(value)]


def rate_edges(field: Sequence[Competitor]) -> Floats:
    """Edges of equal time bins for `rates`, over the longest run."""
    fewest = min(sum(len(run.samples) for run in one.runs) for one in field)
    count = min(max(fewest // REQUESTS_PER_RATE, LEAST_BINS), MOST_RATES)
    return np.linspace(0, max(time_end(field), 1e-3), count + 1)


def rates(one: Competitor, edges: Floats) -> tuple[Floats, Floats]:
    """Successes and errors per second in each bin, by their ends; a request without an end counts when it was due."""
    samples = [run.samples for run in one.runs]
    ends = np.concatenate([np.where(np.isnan(s.ended_at), s.scheduled_at, s.ended_at) for s in samples])
    ok = np.concatenate([s.ok for s in samples])
    seconds = np.diff(edges) * len(samples)
    return np.histogram(ends[ok], edges)[0] / seconds, np.histogram(ends[~ok], edges)[0] / seconds


@mpl.rc_context(STYLE)
def rate_over_time(field: Sequence[Competitor], events: Sequence[Shading]) -> Figure:
    """Successes per second, average over the runs of an entry, and errors per second in grey, events shaded."""
    figure, panels = multiples(field, "seconds from the start of the run", "per second")
    edges = rate_edges(field)
    has_errors = False
    for axes, one in zip(panels, field, strict=True):
        answers, errors = rates(one, edges)
        if errors.any():
            axes.stairs(errors, edges, color=INVALID, fill=True)
            has_errors = True
        axes.stairs(answers, edges, baseline=None, color=one.colour, linewidth=1.5)
        shade_events(axes, events, float(edges[-1]))
    panels[0].set_ylim(bottom=0)
    leave_room(panels[0], len(events))
    handles: list[Line2D | Patch] = [Line2D([], [], color=INK, label="successes")]
    handles += [Patch(facecolor=INVALID, label="errors")] * has_errors
    canvas.legend_above(figure, handles)
    return figure


def draw_failures(axes: Axes, instants: Floats, end: float) -> None:
    """Draw a tick above the panel for each failure, one for those that a picture cannot tell apart."""
    if len(instants):
        step = end / MOST_TICKS
        instants = np.unique(np.round(instants / step)) * step
        top = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        marks: Any = {"color": INVALID, "markersize": 5, "rasterized": True, **top}
        (ticks,) = axes.plot(instants, np.full(len(instants), 1.02), "|", **marks)
        ticks.set_in_layout(False)


def shown(values: Floats, percent: float) -> float:
    """Percentile, nan if too few values lie beyond it; half the least number suffices, as bins are unequally full."""
    return (
        math.nan if has_few_beyond(len(values), percent, LEAST_BEYOND // 2) else percentile(values, percent)
    )


def shade_events(axes: Axes, events: Sequence[Shading], end: float) -> None:
    """Shade each event on a time axis from 0 to `end`, in measured seconds, with a label at the top."""
    for number, (begins, ends, name) in enumerate(events):
        axes.axvspan(begins, min(ends, end), color=SHADE, alpha=0.7, linewidth=0, zorder=0)
        axes.annotate(
            name,
            (begins, 0.98 - LABEL * (number % LABEL_ROWS)),
            xycoords=("data", "axes fraction"),
            xytext=(2, 0),
            textcoords="offset points",
            fontsize=7,
            color=INK,
            va="top",
        )
    axes.set_xlim(0, end)


@mpl.rc_context(STYLE)
def in_flight_per_worker(field: Sequence[Competitor], events: Sequence[Shading]) -> Figure:
    """Requests in flight per worker over the first run of each entry.

    One line per worker; with too many workers, the median of each region in a band from least to most. A dashed one of
    those that ended without an answer, by which the worker would be known.
    """
    figure, panels = multiples(field, "seconds from the start of the run", "requests in flight")
    places = field[0].runs[0].facts.places
    end = time_end(field)
    count = min(MOST_INSTANTS, MOST_POINTS // (len(field) * min(len(places), MAX_DRAWN)))
    instants = np.linspace(0, end, max(LEAST_INSTANTS, count))
    for axes, one in zip(panels, field, strict=True):
        draw_in_flight(axes, one.runs[0], places, instants)
        shade_events(axes, events, end)
    panels[0].set_ylim(bottom=0)
    leave_room(panels[0], len(events))
    handles: list[Line2D | Patch] = [*place_handles(places)]
    if any((one.runs[0].samples.worker < 0).any() for one in field):
        handles.append(Line2D([], [], color=INVALID, linestyle="--", label="without an answer"))
    canvas.legend_above(figure, handles, columns=6)
    return figure


def draw_in_flight(axes: Axes, run: Run, places: Sequence[Place], instants: Floats) -> None:
    """Draw one run up to its end; lines are thin where there are many."""
    instants = instants[instants <= run.samples.span]
    unknown, *known = in_flight(run.samples, len(places), instants)
    lying = np.array(known)
    if unknown.any():
        axes.plot(instants, unknown, color=INVALID, linestyle="--", drawstyle="steps-post")
    if len(places) <= MAX_DRAWN:
        width = 1.5 if len(places) <= MAX_NAMED else 0.6
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
    """Requests that have not ended at each instant: first those of no known worker, then those of each worker."""
    order = np.argsort(samples.worker, kind="stable")
    bounds = np.searchsorted(samples.worker[order], np.arange(-1, workers + 1))
    lying = np.empty((workers + 1, len(instants)))
    for index in range(workers + 1):
        mine = order[bounds[index] : bounds[index + 1]]
        sent, ended = np.sort(samples.sent_at[mine]), np.sort(samples.ended_at[mine])
        begun = np.searchsorted(sent[np.isfinite(sent)], instants, side="right")
        lying[index] = begun - np.searchsorted(ended[np.isfinite(ended)], instants, side="right")
    return lying
