"""Figure of `regions`, with a panel for each part."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import GREY, INK, policy_colour, worker_colours
from experiments.reproduce.charts import BAD, GOOD, bar, label_bars
from experiments.reproduce.regions_cases import (
    PATIENCE,
    PLACES,
    ROUND_TRIPS,
    SOURCE_POLICIES,
    Results,
    policy_spans,
)


@mpl.rc_context(STYLE)
def regions_figure(found: Results) -> Figure:
    """Figure with two rows of three panels."""
    figure, panels = canvas.blank(7.4, 2, 3)
    drawings = {
        "Each worker alone, all at once": draw_workers,
        "One worker under concurrency": draw_concurrency,
        "Without load": draw_unloaded,
        "Latency that the proxy adds": draw_added,
        "Short of descriptors": draw_overloads,
        "All requests, by policy": draw_policies,
    }
    for axes, (title, draw) in zip(panels, drawings.items(), strict=True):
        axes.set_title(title, fontweight="bold")
        draw(axes, found)
    return figure


def draw_workers(axes: Axes, found: Results) -> None:
    """Response time of each request directly to each worker, as in the source's plot."""
    for (worker, samples), colour in zip(found.workers, worker_colours(PLACES), strict=False):
        number, taken = samples.sequence[samples.ok], samples.service_time[samples.ok]
        axes.plot(number, taken, ".", markersize=2, color=colour, label=worker, rasterized=True)
    axes.set(xlabel="request number", ylabel="s")
    axes.set_ylim(bottom=0)
    if found.workers:
        axes.legend(fontsize=7, ncols=2, markerscale=4, loc="lower right")


def draw_concurrency(axes: Axes, found: Results) -> None:
    """Longest and median latency, and failures, by concurrency."""
    at_once = [one.at_once for one in found.concurrency]
    axes.plot(at_once, [one.max for one in found.concurrency], "o-", color=INK, label="longest")
    axes.plot(at_once, [one.p50 for one in found.concurrency], "o--", color=GOOD, label="median")
    axes.axhline(PATIENCE, color=BAD, linewidth=1.2)
    note(axes, "503 of the platform", 0, PATIENCE, (3, 3), BAD)
    for one in found.concurrency:
        if one.failed:
            note(axes, f"{one.failed / one.requests:.0%} failed", one.at_once, 0, (0, 6), BAD, ha="right")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.15 * PATIENCE)
    axes.set(xlabel="requests at once", ylabel="s, in the source's time")
    axes.legend(fontsize=8, loc="center left")


def note(
    axes: Axes, text: str, x: float, y: float, offset: tuple[float, float], colour: str, **style: Any
) -> None:
    """Small text, `offset` points away from a point of the data."""
    axes.annotate(text, (x, y), offset, textcoords="offset points", color=colour, fontsize=8, **style)


def draw_unloaded(axes: Axes, found: Results) -> None:
    """Components of a call without load: network delay, computation, rest."""
    rows = list(reversed(found.unloaded))
    network = np.array([1e3 * ROUND_TRIPS[one.region] for one in rows])
    work = np.array([1e3 * float(np.median(one.service)) for one in rows])
    rest = np.array([max(0.0, 1e3 * one.platform) for one in rows])
    at = range(len(rows))
    for left, width, colour, label in (
        (0 * network, network, GREY, "round trip"),
        (network, work, GOOD, "computation"),
        (network + work, rest, BAD, "rest"),
    ):
        axes.barh(at, width, left=left, height=0.7, color=colour, label=label)
    for y, one in zip(at, rows, strict=True):
        total = 1e3 * float(np.median(one.took))
        note(axes, f"{total:.0f}", total, y, (4, 0), INK, va="center")
    label_bars(axes, [one.worker for one in rows], "ms")
    axes.set_xlim(0, 720)
    axes.set_ylim(-0.6, len(rows) + 0.9)  # room for the legend
    axes.legend(fontsize=7, loc="upper left", handlelength=1, ncols=3, columnspacing=1)


def draw_added(axes: Axes, found: Results) -> None:
    """Latency that a balancer adds, one point for each block."""
    ours = [1e3 * (one.proxy - one.direct) for one in found.added]
    fresh = [1e3 * (one.without_keep_alive - one.direct) for one in found.added]
    rng = np.random.default_rng(1)
    for at, values, colour in ((0, ours, GOOD), (1, fresh, BAD)):
        x = at + rng.uniform(-0.15, 0.15, len(values))
        axes.plot(x, values, "o", color=colour, markersize=3, alpha=0.6)
        if values:
            middle = float(np.median(values))
            axes.plot([at - 0.25, at + 0.25], [middle, middle], color=INK, linewidth=2)
            note(axes, f"{middle:.2f} ms", at + 0.25, middle, (3, 0), INK, va="center")
    axes.axhspan(30, 35, color=GREY, alpha=0.3, linewidth=0)
    note(axes, "source", -0.45, 35, (0, 2), GREY)
    axes.set_xticks([0, 1], ["ours", "a connection\neach"])
    axes.set_xlim(-0.5, 1.8)
    axes.set_ylim(bottom=min(0.0, *ours, 0.0))
    axes.set_ylabel("ms above a direct call")


def draw_overloads(axes: Axes, found: Results) -> None:
    """Completed requests over time."""
    for one, colour in zip(found.overloads, (GOOD, BAD), strict=False):
        ended = np.sort(np.array(one.ended))
        label = f"{one.at_once} at once, {one.failed} failed"
        axes.plot(ended, np.arange(1, len(ended) + 1), color=colour, linewidth=1.8, label=label)
    axes.set(xlabel="seconds", ylabel="requests answered")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    if found.overloads:
        title = f"ulimit -n {found.overloads[0].descriptors}"
        axes.legend(fontsize=7, loc="upper left", title=title, title_fontsize=7)


def draw_policies(axes: Axes, found: Results) -> None:
    """Total seconds of all requests by policy."""
    spans = dict(sorted(policy_spans(found.policy_runs).items(), key=lambda pair: -pair[1]))
    for at, (policy, span) in enumerate(spans.items()):
        bar(axes, at, span, f"{span:.1f}", policy_colour(policy.partition(",")[0], []))
    names = [policy if policy in SOURCE_POLICIES else f"{policy} (ours)" for policy in spans]
    label_bars(axes, names, "s, in the source's time")
    axes.set_xlim(0, 1.18 * max(spans.values(), default=1.0))
