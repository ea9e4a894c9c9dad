"""Base of all figures: sizes, axes, and export to SVG and PNG.

Uses matplotlib's object interface with the Agg canvas, never pyplot or a window. All figures have one width, and on a
narrow screen a page scrolls them sideways, so that their text stays readable; only that of the verdict is narrow. Text
becomes outlines and identifiers are seeded, so a file depends only on its data.

SVG files are made smaller than matplotlib writes them, and dark where the reader's setting is dark: the colours that
`palette.DARK` names are exchanged by a style sheet inside the file; programs without style sheets show the light ones.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from PIL import Image

from experiments.report.palette import DARK, GREY, GRID, INK

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # where it stands; without a place, each drawing looks for one above the ticks
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.limits": (-4, 9),  # no power of ten over the title
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "text.hinting": "none",  # with hints, letters are wider in one resolution than in that of the layout
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

LONGEST_LINE = 30
"""Most characters of a line of a name beside or above an axis."""

LEGEND_LINE = 0.19
"""Height of a line of a legend in inches."""


NUMBER = re.compile(rb"-?\d+\.\d{3,}")
PATHS = re.compile(rb' d="[^"]+"')
POINT = re.compile(rb"([ML])(-?[\d.]+) (-?[\d.]+)")
LINES = re.compile(rb' d="(?:[ML]-?[\d.]+ -?[\d.]+)+"')
MIN_CURVE_BYTES = 1000
"""Number of bytes from which on a path is a curve and no letter or mark."""

METADATA = re.compile(rb"<metadata>.*?</metadata>\s*", re.DOTALL)
BETWEEN = re.compile(rb">\s+<")
IMAGES = re.compile(rb"(data:image/png;base64,)([A-Za-z0-9+/=\s]+)")
PLACES = re.compile(rb"<use [^>]*>")
STYLES = re.compile(rb'style="[^"]*"')


def blank(
    height: float, rows: int = 1, columns: int = 1, width: float = WIDTH, **grid: Any
) -> tuple[Figure, list[Axes]]:
    """Empty figure of `height` inches with its axes, row by row. Call inside `mpl.rc_context(STYLE)`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **grid)
    return figure, [axis for line in axes for axis in line]


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in `STYLE`, without a warning for each letter that its font lacks: they are boxes in the figure, and text in
    the tables. Another font would make a file depend on the machine."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def settle(figure: Figure) -> Figure:
    """Compute the layout once and freeze it; otherwise every file format repeats it."""
    with drawing():
        engine = figure.get_layout_engine()
        assert engine is not None  # of `blank`
        for axis in (one for axes in figure.axes for one in (axes.xaxis, axes.yaxis)):
            if not axis.get_label_text():
                axis.set_label_coords(0, 0)  # else each drawing looks for its place beside the ticks
        engine.execute(figure)
        figure.set_layout_engine(None)  # the placeholder of "none" would have every file drawn twice
    return figure


def to_svg(figure: Figure) -> bytes:
    """Figure as SVG bytes without a date, light and dark; marked elements are rasterised."""
    with drawing():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", dpi=SVG_DPI, metadata={"Date": None, "Creator": None})
    return finished(buffer.getvalue())


def finished(svg: bytes) -> bytes:
    """Shorten the numbers and spaces of `svg` and add the dark colours."""
    text = BETWEEN.sub(b"><", METADATA.sub(b"", svg))
    text = IMAGES.sub(lambda found: found[1] + with_palette(b64decode(found[2])), text)
    text = PLACES.sub(lambda found: NUMBER.sub(lambda number: b"%.2f" % float(number[0]), found[0]), text)
    text = STYLES.sub(lambda found: found[0].replace(b": ", b":").replace(b"; ", b";"), text)
    text = PATHS.sub(lambda found: shortened(found[0]), text)
    return text.replace(b"<defs>", b"<defs><style>" + dark_rules(text).encode() + b"</style>", 1)


def with_palette(png: bytes) -> bytes:
    """Base64 of the picture with at most 256 colours: dots have few, and so take a third of the bytes."""
    made = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGBA").quantize(256, Image.Quantize.FASTOCTREE).save(made, "png", optimize=True)
    return b64encode(made.getvalue())


def shortened(path: bytes) -> bytes:
    """Path data with two decimals; the long path of a curve has one, and short commands for level and upright lines."""
    digits = b"%.1f" if len(path) > MIN_CURVE_BYTES else b"%.2f"
    text = NUMBER.sub(lambda found: digits % float(found[0]), path)
    text = re.sub(rb"\s*\n", rb"", re.sub(rb"([MLQCHVz]) ", rb"\1", text))
    return of_steps(text) if len(path) > MIN_CURVE_BYTES and LINES.fullmatch(text) else text


def of_steps(path: bytes) -> bytes:
    """Path of straight lines in which a level line is `H x` and an upright one `V y`."""
    made, before = [], (b"", b"")
    for command, x, y in POINT.findall(path):
        if command == b"M" or (x != before[0] and y != before[1]):
            made.append(command + x + b" " + y)
        elif (x, y) != before:
            made.append(b"H" + x if y == before[1] else b"V" + y)
        before = (x, y)
    return b' d="' + b"".join(made) + b'"'


def dark_rules(svg: bytes) -> str:
    """Style sheet that exchanges the colours that occur."""
    present = {light: dark for light, dark in DARK.items() if light.encode() in svg}
    rules = "".join(
        f'[style*="{key}:{light}"]{{{key}:{dark}!important}}'
        for light, dark in present.items()
        for key in ("fill", "stroke")
    )
    return f"@media(prefers-color-scheme:dark){{{rules}}}"


def to_png(figure: Figure) -> bytes:
    """Figure as PNG bytes at `PNG_DPI` dots per inch."""
    with drawing():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return buffer.getvalue()


def milliseconds(axis: Any, values: Sequence[float]) -> None:
    """Log axis over `values` in ms with plain numbers, at 1, 2, 5 times a power of ten, or closer or wider."""
    if not values:
        axis.set_ticks([])
        return
    low, high = max(min(values), 1e-3), max(*values, 1e-3)
    low, high = low / 1.06, max(high * 1.06, low * 1.5)  # a margin, and at least a factor of 1.5
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    is_crowded = axis.axis_name == "x" and high >= 1e4  # long labels beside each other
    labelled = steps((high / low) ** (2 if is_crowded else 1))
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
    axes.set_yticks(range(len(names)), [folded(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def folded(name: str) -> str:
    """The name in lines of at most `LONGEST_LINE` characters."""
    return "\n".join(line for part in name.split("\n") for line in wrap(part, LONGEST_LINE))


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
    """Add one legend for the whole figure, outside of the axes, in fewer columns if so many do not fit; the figure
    grows by the lines that this takes."""
    most = ncols = min(columns, max(1, len(handles)))
    style: Any = {"loc": "outside upper left", "fontsize": 9, "handlelength": 2.2}
    with drawing():
        legend = figure.legend(handles=list(handles), ncols=ncols, **style)
        while ncols > 1 and legend.get_window_extent().width > figure.bbox.width:
            legend.remove()
            ncols -= 1
            legend = figure.legend(handles=list(handles), ncols=ncols, **style)
    lines = math.ceil(len(handles) / ncols) - math.ceil(len(handles) / most)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * lines)
