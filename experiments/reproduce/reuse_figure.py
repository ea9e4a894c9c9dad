"""Figure of `reuse`: latency by percentile for each transport, and throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import GREY
from experiments.reproduce.charts import bar, draw_percentiles, label_bars, label_percentiles, nines
from experiments.reproduce.latency_summary import LatencySummary

COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#0072B2")
SOURCE_COLOURS = (GREY, "#222222")
RANKS = (0.0, 50.0, 75.0, 95.0, 99.0, 99.9)


@mpl.rc_context(STYLE)
def reuse_figure(
    taken: Mapping[str, Sequence[float]],
    rows: Mapping[str, LatencySummary],
    source: Mapping[str, LatencySummary],
) -> Figure:
    """Figure with both panels. `taken`: seconds of each call, by transport."""
    figure, (latency, rate) = canvas.blank(4.6, 1, 2, width_ratios=(2.2, 1))
    colours = dict(zip([*source, *rows], [*SOURCE_COLOURS, *COLOURS], strict=False))
    draw_latency(latency, taken, source, colours)
    handles, _ = latency.get_legend_handles_labels()
    canvas.legend_above(figure, handles, columns=3)
    both = dict(reversed([*source.items(), *rows.items()]))
    for at, (name, row) in enumerate(both.items()):
        bar(rate, at, row.rate, f"{row.rate:.0f}", colours[name])
    rate.set_xlim(0, 1.18 * max(row.rate for row in both.values()))
    label_bars(rate, list(both), "requests per second")
    rate.set_title("Throughput", fontweight="bold")
    return figure


def draw_latency(
    axes: Axes,
    taken: Mapping[str, Sequence[float]],
    source: Mapping[str, LatencySummary],
    colours: Mapping[str, str],
) -> None:
    """Latency percentiles in milliseconds; of the source only those that it states."""
    for name, seconds in taken.items():
        draw_percentiles(axes, seconds, colours[name], name)
    for name, row in source.items():
        values = (row.p50, row.p75, row.p95, row.p99)
        at = nines((50.0, 75.0, 95.0, 99.0))
        axes.plot(at, values, "o--", color=colours[name], linewidth=1, markersize=4, label=name)
    ends = [1e3 * one for seconds in taken.values() for one in (min(seconds), max(seconds))]
    canvas.milliseconds(axes.yaxis, [*ends, *(row.p99 for row in source.values())])
    label_percentiles(axes, RANKS)
    axes.set_ylabel("ms, in the source's time")
    axes.set_title("Latency of a call", fontweight="bold")
