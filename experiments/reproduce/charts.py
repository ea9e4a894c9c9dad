"""Parts of figures that several reproductions draw: bars with values, and latency by percentile."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.report.palette import INK
from experiments.stats.comparison import Interval

GOOD, BAD = "#0072B2", "#D55E00"
SOURCE_STROKE = "stroke: the source's"
SOURCE_MARK: Any = {
    **{"marker": "o", "linestyle": "", "markersize": 7},
    **{"markeredgecolor": INK, "markerfacecolor": "white"},
}
"""Style of a point at a value of the source."""


def bar(
    axes: Axes,
    at: float,
    value: float,
    text: str,
    colour: Any,
    height: float = 0.7,
    interval: tuple[float, float] | None = None,
    expected: float | None = None,
) -> None:
    """Horizontal bar with its value as text, and optionally an interval and a stroke at the expected value."""
    low, high = interval or (value, value)
    error = [[max(0.0, value - low)], [max(0.0, high - value)]] if interval else None
    axes.barh(at, value, height, color=colour, xerr=error, ecolor=INK)
    if expected is not None:
        axes.plot([expected] * 2, [at - 0.55 * height, at + 0.55 * height], color=INK, linewidth=2)
    beside: Any = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.75}  # in front of a stroke
    axes.annotate(text, (max(0.0, high), at), **beside, bbox=box)


def label_bars(axes: Axes, names: Sequence[str], label: str) -> None:
    """Names of the bars from bottom to top, and the label of the values."""
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel(label)
    axes.grid(visible=False, axis="y")


def interval_bars(
    axes: Axes,
    found: Mapping[str, Interval],
    label: str,
    form: Callable[[float], str],
    bad: Container[str] = (),
    expected: Mapping[str, float] | None = None,
    unit: float = 1.0,
) -> None:
    """Bar for each name, the first on top, in multiples of `unit`; those in `bad` have the colour of bad ones."""
    names = list(found)[::-1]
    for at, name in enumerate(names):
        mean, *ends = (unit * value for value in (found[name].ratio, found[name].low, found[name].high))
        stroke = (expected or {}).get(name)
        bar(axes, at, mean, form(mean), BAD if name in bad else GOOD, 0.7, (ends[0], ends[1]), stroke)
    label_bars(axes, names, label)


def draw_percentiles(axes: Axes, seconds: Sequence[float], colour: str, label: str) -> None:
    """Latency in milliseconds by percentile."""
    values = np.sort(np.array(seconds)) * 1e3
    ranks = 100 * (np.arange(len(values)) + 0.5) / max(1, len(values))
    axes.plot(nines(ranks), values, color=colour, linewidth=1.8, label=label)


def label_percentiles(axes: Axes, ranks: Sequence[float]) -> None:
    axes.set_xticks(nines(ranks), [f"{rank:g}" for rank in ranks])
    axes.set_xlabel("percentile of the calls")


def nines(percents: Any) -> np.typing.NDArray[np.float64]:
    """Position of percentiles on an axis with equal width for each further nine."""
    return np.asarray(-np.log10(1 - np.minimum(percents, 99.9999) / 100))
