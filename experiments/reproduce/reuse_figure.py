"""Figure of latency by percentile for each way to call, and throughput. Computes nothing but ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import NEGLIGIBLE_WEIGHT
from experiments.reproduce.quantities import Quantities

COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#0072B2")
THEIRS = (NEGLIGIBLE_WEIGHT, "#222222")
RANKS = (0.0, 50.0, 75.0, 95.0, 99.0, 99.9)


@mpl.rc_context(STYLE)
def reuse_figure(
    taken: Mapping[str, Sequence[float]], rows: Mapping[str, Quantities], source: Mapping[str, Quantities]
) -> Figure:
    """Figure with both panels. `taken`: seconds of each call, by way."""
    figure, (spectrum, rate) = canvas.blank(4.6, 1, 2, width_ratios=(2.2, 1))
    colours = dict(zip([*source, *rows], [*THEIRS, *COLOURS], strict=False))
    draw_spectrum(spectrum, taken, source, colours)
    handles, _ = spectrum.get_legend_handles_labels()
    canvas.legend_above(figure, handles, columns=3)
    draw_rates(rate, {**source, **rows}, colours)
    return figure


def draw_spectrum(
    axes: Axes,
    taken: Mapping[str, Sequence[float]],
    source: Mapping[str, Quantities],
    colours: Mapping[str, str],
) -> None:
    """Latency percentiles in milliseconds, with equal width for each further nine."""
    for name, seconds in taken.items():
        values = np.sort(np.array(seconds)) * 1e3
        ranks = (np.arange(len(values)) + 0.5) / max(1, len(values))
        axes.plot(nines(100 * ranks), values, color=colours[name], linewidth=1.8, label=name)
    for name, row in source.items():
        points = {50.0: row.p50, 75.0: row.p75, 95.0: row.p95, 99.0: row.p99}
        at = nines(np.array(list(points)))
        axes.plot(
            at, list(points.values()), "o--", color=colours[name], linewidth=1, markersize=4, label=name
        )
    every = [1e3 * one for seconds in taken.values() for one in (min(seconds), max(seconds))]
    canvas.milliseconds(axes.yaxis, [*every, *(row.p99 for row in source.values())])
    axes.set_xticks(nines(np.array(RANKS)), [f"{rank:g}" for rank in RANKS])
    axes.set_xlabel("per cent of the calls that took so long at most")
    axes.set_ylabel("ms, in the source's time")
    axes.set_title("How long a call takes", fontweight="bold")


def draw_rates(axes: Axes, rows: Mapping[str, Quantities], colours: Mapping[str, str]) -> None:
    """Bars of requests per second, the source's first."""
    names = list(rows)[::-1]
    for at, name in enumerate(names):
        axes.barh(at, rows[name].rate, 0.7, color=colours[name])
        axes.annotate(
            f"{rows[name].rate:.0f}", (rows[name].rate, at), (4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlim(0, 1.18 * max(row.rate for row in rows.values()))
    axes.set_xlabel("requests per second")
    axes.set_title("Throughput", fontweight="bold")
    axes.grid(visible=False, axis="y")


def nines(percents: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
    """Position of a percentile on an axis with equal width for each further nine."""
    return np.asarray(-np.log10(1 - np.minimum(percents, 99.9999) / 100))
