"""Figure of the evaluation of a forwarding balancer, with a panel for each question."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import INK, NEGLIGIBLE_WEIGHT, policy_colour, worker_colours
from experiments.reproduce.evaluation import FIVE, PATIENCE, PLACES, TRIPS, Evaluation, spans_of

GOOD, BAD = "#0072B2", "#D55E00"


@mpl.rc_context(STYLE)
def regions_figure(found: Evaluation) -> Figure:
    """Figure with two rows of three panels."""
    figure, panels = canvas.blank(7.4, 2, 3)
    drawings = (draw_machines, draw_crowds, draw_calm, draw_added, draw_crushes, draw_policies)
    for axes, draw in zip(panels, drawings, strict=True):
        draw(axes, found)
    return figure


def draw_machines(axes: Axes, found: Evaluation) -> None:
    """Response time of each request directly to each worker, as in the source's plot."""
    axes.set_title("Each worker alone, all at once", fontweight="bold")
    colours = worker_colours(PLACES)
    for (worker, samples), colour in zip(found.machines, colours, strict=False):
        taken = samples.service_time[samples.ok]
        number = samples.sequence[samples.ok]
        axes.plot(number, taken, ".", markersize=2, color=colour, label=worker, rasterized=True)
    axes.set_xlabel("request number")
    axes.set_ylabel("s")
    axes.set_ylim(bottom=0)
    if found.machines:
        axes.legend(fontsize=7, ncols=2, markerscale=4, loc="lower right")


def draw_crowds(axes: Axes, found: Evaluation) -> None:
    """Longest and median latency, and failures, by concurrency."""
    axes.set_title("One machine before a crowd", fontweight="bold")
    at_once = [one.at_once for one in found.crowds]
    axes.plot(at_once, [one.most for one in found.crowds], "o-", color=INK, label="longest answer")
    axes.plot(at_once, [one.p50 for one in found.crowds], "o--", color=GOOD, label="median")
    axes.axhline(PATIENCE, color=BAD, linewidth=1.2)
    axes.annotate(
        "503 of the platform", (0, PATIENCE), (3, 3), textcoords="offset points", color=BAD, fontsize=8
    )
    for one in found.crowds:
        if one.failed:
            share = f"{one.failed / one.requests:.0%} failed"
            axes.annotate(
                share,
                (one.at_once, 0),
                (0, 6),
                textcoords="offset points",
                ha="right",
                color=BAD,
                fontsize=8,
            )
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.15 * PATIENCE)
    axes.set_xlabel("requests at once")
    axes.set_ylabel("s, in the source's time")
    axes.legend(fontsize=8, loc="center left")


def draw_calm(axes: Axes, found: Evaluation) -> None:
    """Components of a call without load: network delay, computation, rest."""
    axes.set_title("Without load", fontweight="bold")
    rows = list(reversed(found.calm))
    way = np.array([1e3 * TRIPS[one.region] for one in rows])
    work = np.array([1e3 * float(np.median(one.worked)) for one in rows])
    rest = np.array([max(0.0, 1e3 * one.platform) for one in rows])
    at = range(len(rows))
    for left, width, colour, label in (
        (0 * way, way, NEGLIGIBLE_WEIGHT, "way there and back"),
        (way, work, GOOD, "computation"),
        (way + work, rest, BAD, "rest"),
    ):
        axes.barh(at, width, left=left, height=0.7, color=colour, label=label)
    for y, one in zip(at, rows, strict=True):
        whole = 1e3 * float(np.median(one.took))
        axes.annotate(f"{whole:.0f}", (whole, y), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(at, [one.worker for one in rows])
    axes.set_xlim(0, 720)
    axes.set_ylim(-0.6, len(rows) + 0.9)  # room for the legend
    axes.set_xlabel("ms")
    axes.legend(fontsize=7, loc="upper left", handlelength=1, ncols=3, columnspacing=1)
    axes.grid(visible=False, axis="y")


def draw_added(axes: Axes, found: Evaluation) -> None:
    """Latency that a balancer adds, one point for each visit."""
    axes.set_title("What the unit adds", fontweight="bold")
    ours = [1e3 * (one.unit - one.direct) for one in found.added]
    fresh = [1e3 * (one.fresh - one.direct) for one in found.added]
    rng = np.random.default_rng(1)
    for at, values, colour in ((0, ours, GOOD), (1, fresh, BAD)):
        x = at + rng.uniform(-0.15, 0.15, len(values))
        axes.plot(x, values, "o", color=colour, markersize=3, alpha=0.6)
        if values:
            middle = float(np.median(values))
            axes.plot([at - 0.25, at + 0.25], [middle, middle], color=INK, linewidth=2)
            axes.annotate(
                f"{middle:.2f} ms",
                (at + 0.25, middle),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
    axes.axhspan(30, 35, color=NEGLIGIBLE_WEIGHT, alpha=0.3, linewidth=0)
    axes.annotate(
        "source", (-0.45, 35), (0, 2), textcoords="offset points", color=NEGLIGIBLE_WEIGHT, fontsize=8
    )
    axes.set_xticks([0, 1], ["ours", "a connection\neach"])
    axes.set_xlim(-0.5, 1.8)
    axes.set_ylim(bottom=min(0.0, *ours, 0.0))
    axes.set_ylabel("ms above a direct call")


def draw_crushes(axes: Axes, found: Evaluation) -> None:
    """Completed requests over time."""
    axes.set_title("Short of descriptors", fontweight="bold")
    for one, colour in zip(found.crushes, (GOOD, BAD), strict=False):
        ended = np.sort(np.array(one.ended))
        label = f"{one.at_once} at once, {one.failed} failed"
        axes.plot(ended, np.arange(1, len(ended) + 1), color=colour, linewidth=1.8, label=label)
    axes.set_xlabel("seconds")
    axes.set_ylabel("requests answered")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    if found.crushes:
        axes.legend(
            fontsize=7, loc="upper left", title=f"ulimit -n {found.crushes[0].descriptors}", title_fontsize=7
        )


def draw_policies(axes: Axes, found: Evaluation) -> None:
    """Total seconds of all requests by policy."""
    axes.set_title("All requests, by policy", fontweight="bold")
    spans = dict(sorted(spans_of(found.policy_runs).items(), key=lambda pair: -pair[1]))
    for at, (label, span) in enumerate(spans.items()):
        colour = policy_colour(label.partition(",")[0], [])
        axes.barh(at, span, 0.7, color=colour, alpha=1.0 if label not in FIVE else 0.75)
        axes.annotate(f"{span:.1f}", (span, at), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(
        range(len(spans)), [label if label in FIVE else f"{label} (ours)" for label in spans], fontsize=8
    )
    axes.set_xlim(0, 1.18 * max(spans.values(), default=1.0))
    axes.set_xlabel("s, in the source's time")
    axes.grid(visible=False, axis="y")
