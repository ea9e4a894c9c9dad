"""Figure of one storm over time: active faults, failed requests, latency and share of each worker.

The four panels share a time axis, so that effects line up with their causes.
"""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.harness.verified.account import NO_WORKER, Account
from benchmarks.harness.verified.messages import WORKERS, Ending
from benchmarks.storm.figures import DETECTION_S, Figures, success
from benchmarks.storm.plan import Episode, Pace
from benchmarks.storm.runs import Spans, Storm
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import GREY, INK, worker_colours
from experiments.run_data import Flags, Floats, Place

FAULT_COLOURS = {
    "killed": "#222222",
    "stopped": "#6A3D9A",
    "cut": "#D55E00",
    "busy": "#E69F00",
    "drip": "#56B4E9",
    "fickle": "#009E73",
}
PLACES = tuple(Place(worker=worker, region=worker.partition("-")[0]) for worker in WORKERS)
BIN = 0.5
"""Width of a bin in seconds."""

SHADE = 0.09
MARK = 0.04
"""Height of a mark at the foot of a panel, as a fraction of the panel."""


@mpl.rc_context(STYLE)
def storm_figure(storm: Storm, figures: Figures, pace: Pace) -> Figure:
    assert storm.account is not None
    rows = storm.account
    figure, panels = canvas.blank(9.0, 4, 1, sharex=True, height_ratios=(1.15, 1, 1.5, 1.5))
    schedule, failed, latency, share = panels
    draw_schedule(schedule, storm.episodes)
    draw_failures(failed, rows, pace)
    draw_latency(latency, rows, pace, storm.disturbed)
    draw_share(share, rows, pace)
    for axes in (failed, latency):
        shade(axes, storm.episodes)
    for instant in (instant for episode in storm.episodes for instant in (episode.at, episode.until)):
        share.axvline(instant, color=INK, linewidth=0.6, linestyle=(0, (2, 2)))
    share.set_xlim(0, pace.seconds)
    share.set_xlabel("seconds; the reference is measured before the first fault")
    ok = f"GET success {success(figures.gets_ok, figures.gets)}"
    posts = f"POST success {success(figures.posts_ok, figures.posts)}"
    figure.suptitle(
        f"{storm.peer}: {ok}, {posts}, {figures.twice} executed twice", x=0.01, ha="left", fontweight="bold"
    )
    return figure


def shade(axes: Axes, episodes: tuple[Episode, ...]) -> None:
    """Shade active faults in their colours, the first second of each darker."""
    for episode in episodes:
        colour = FAULT_COLOURS[episode.fault]
        axes.axvspan(episode.at, episode.until, color=colour, alpha=SHADE, linewidth=0, zorder=0)
        axes.axvspan(episode.at, episode.at + DETECTION_S, color=colour, alpha=SHADE, linewidth=0, zorder=0)


def draw_schedule(axes: Axes, episodes: tuple[Episode, ...]) -> None:
    """Draw a bar for each fault in the row of its worker."""
    for episode in episodes:
        for worker in episode.workers:
            axes.barh(
                WORKERS.index(worker),
                episode.until - episode.at,
                left=episode.at,
                height=0.72,
                color=FAULT_COLOURS[episode.fault],
            )
    axes.set_yticks(range(len(WORKERS)), WORKERS)
    axes.set_ylim(len(WORKERS) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_title("faults by worker")
    handles = [Patch(color=colour, label=fault) for fault, colour in FAULT_COLOURS.items()]
    axes.legend(handles=handles, ncols=len(handles), fontsize=9, loc="lower right", bbox_to_anchor=(1, 1))


def edges_of(pace: Pace) -> Floats:
    return np.arange(0.0, pace.seconds + BIN, BIN)


def draw_failures(axes: Axes, rows: Account, pace: Pace) -> None:
    """Failed requests in each bin, GETs stacked on POSTs."""
    edges = edges_of(pace)
    failed = rows.ending != Ending.OK
    posts, gets = (
        np.histogram(rows.due[failed & chosen], edges)[0] for chosen in (rows.is_post, ~rows.is_post)
    )
    axes.bar(edges[:-1], posts, BIN, align="edge", color="#CC79A7", label="POST")
    axes.bar(edges[:-1], gets, BIN, align="edge", bottom=posts, color="#B00020", label="GET")
    axes.set_ylim(0, max(5.0, 1.15 * float((posts + gets).max(initial=0))))
    axes.set_title(f"failed requests in each {BIN:g} s")
    axes.legend(fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)


def draw_latency(axes: Axes, rows: Account, pace: Pace, disturbed: Spans) -> None:
    """Median and p99 of successes, the quiet p99 as a horizontal line, and the spans excluded from judgement."""
    edges = edges_of(pace)
    ok = rows.ending == Ending.OK
    middle = (edges[:-1] + edges[1:]) / 2
    for percent, colour, name in ((50, "#0072B2", "median"), (99, INK, "p99")):
        axes.plot(middle, binned(rows, ok, edges, percent), color=colour, linewidth=1.3, label=name)
    quiet = rows.latency[ok & (rows.due >= 0) & (rows.due < pace.quiet)]
    if len(quiet):
        axes.axhline(float(np.percentile(quiet, 99)) * 1e3, color=GREY, linestyle="--", linewidth=1)
    shown = rows.latency[ok & (rows.due >= 0)] * 1e3
    canvas.milliseconds(axes.yaxis, [float(shown.min()), float(shown.max())] if len(shown) else [])
    axes.set_title("latency of successes, ms (log)")
    for since, until in disturbed:
        axes.axvspan(max(0.0, since), until, ymax=MARK, color=GREY, linewidth=0)
    handles = [
        *axes.lines[:2],
        Line2D([], [], color=GREY, linestyle="--", label="p99 without faults"),
        Patch(color=GREY, label="excluded: the host took a core"),
    ]
    axes.legend(handles=handles, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=4)


def binned(rows: Account, among: Flags, edges: Floats, percent: float) -> list[float]:
    """Percentile in milliseconds for each bin; nan if it is empty."""
    at, taken = rows.due[among], rows.latency[among] * 1e3
    which = np.digitize(at, edges) - 1
    parts = [taken[which == number] for number in range(len(edges) - 1)]
    return [float(np.percentile(part, percent)) if len(part) else float("nan") for part in parts]


def draw_share(axes: Axes, rows: Account, pace: Pace) -> None:
    edges = edges_of(pace)
    counts = np.array([np.histogram(rows.due[rows.worker == i], edges)[0] for i in range(len(WORKERS))])
    total = np.maximum(1, np.histogram(rows.due[rows.worker != NO_WORKER], edges)[0])
    parts = np.repeat(100 * counts / total, 2, axis=1)
    at = np.repeat(edges, 2)[1:-1]
    axes.stackplot(at, parts, colors=worker_colours(PLACES), labels=WORKERS, linewidth=0)
    axes.set_ylim(0, 100)
    axes.set_title("share of responses by worker, %")
    axes.grid(visible=False)
    axes.legend(fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(WORKERS))
