"""Base of all figures: sizes, axes, and export to SVG and PNG.

Uses matplotlib's object interface with the Agg canvas, never pyplot or a window. All figures have one width, and on a
narrow screen a page scrolls them sideways, so that their text stays readable; only that of the verdict is narrow. Text
becomes outlines and identifiers are seeded, so a file depends only on its data.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from experiments.report.palette import GREY, GRID, INK
from experiments.report.svg import finished

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "legend.frameon": False,
    "hatch.linewidth": 0.8,
    "hatch.color": "white",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "steelyard",
}


PNG_DPI = 120

SVG_DPI = 100
"""Resolution of dots inside an SVG; a page shows about as many."""


WIDTH = 10.6
"""Width of figures in inches."""

NARROW = 5.2
"""Width of a figure that a telephone shows whole."""

COLUMNS = 3
"""Number of small multiples side by side."""


def blank(
    height: float, rows: int = 1, columns: int = 1, width: float = WIDTH, **grid: Any
) -> tuple[Figure, list[Axes]]:
    """Empty figure of `height` inches with its axes, row by row. Call inside `mpl.rc_context(STYLE)`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **grid)
    return figure, [axis for line in axes for axis in line]


def settle(figure: Figure) -> Figure:
    """Compute the layout once and freeze it; otherwise every file format repeats it."""
    with mpl.rc_context(STYLE):
        engine = figure.get_layout_engine()
        assert engine is not None  # of `blank`
        engine.execute(figure)
        figure.set_layout_engine(None)  # the placeholder of "none" would have every file drawn twice
    return figure


def to_svg(figure: Figure) -> bytes:
    """Figure as SVG bytes without a date, light and dark; marked elements are rasterised."""
    with mpl.rc_context(STYLE):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", dpi=SVG_DPI, metadata={"Date": None, "Creator": None})
    return finished(buffer.getvalue())


def to_png(figure: Figure) -> bytes:
    """Figure as PNG bytes at `PNG_DPI` dots per inch."""
    with mpl.rc_context(STYLE):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return buffer.getvalue()


def milliseconds(axis: Any, values: Sequence[float]) -> None:
    """Log axis over `values` in ms with plain numbers: ticks at 1, 2, 5 times a power of ten, or closer or wider.

    Without values the axis stays empty.
    """
    if not values:
        axis.set_ticks([])
        return
    low, high = max(min(values), 1e-3), max(*values, 1e-3)
    low, high = low / 1.06, max(high * 1.06, low * 1.5)  # a margin, and at least a factor of 1.5
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    labelled = steps(high / low)
    axis.set_major_locator(LogLocator(base=10, subs=labelled, numticks=12))
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}".replace(",", " ") if value >= 10 else f"{value:g}")
    )
    is_wide = len(labelled) == 1  # elsewhere ticks without a label would be half of a figure's bytes
    axis.set_minor_locator(
        LogLocator(base=10, subs=tuple(range(1, 10)), numticks=12) if is_wide else NullLocator()
    )
    axis.set_minor_formatter(NullFormatter())


def fixed_ticks(axis: Any, places: Sequence[float], form: Callable[[float], str]) -> None:
    """Ticks at these places and no others, with their numbers in this form."""
    axis.set_major_locator(FixedLocator(places))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))


def rows(axes: Axes, names: Sequence[str]) -> None:
    """Label the vertical axis with the names of the rows, first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def steps(ratio: float) -> tuple[float, ...]:
    """Multiples of a power of ten that get a label, for an axis that spans `ratio`."""
    if ratio > 2e3:
        return (1.0,)
    if ratio > 8:
        return (1.0, 2.0, 5.0)
    if ratio > 2.5:
        return (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    return (1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.3, 2.6, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0)


def legend_above(figure: Figure, handles: Sequence[Any], columns: int = 5) -> None:
    """Add one legend for the whole figure, outside of the axes."""
    ncols = min(columns, max(1, len(handles)))
    figure.legend(handles=list(handles), loc="outside upper left", ncols=ncols, fontsize=9, handlelength=2.2)
