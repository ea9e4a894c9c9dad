"""Heat map of the policy matrix.

The colour is the ratio on a log scale, from cividis, which is readable with colour blindness; every square also carries
its number, and a mark where the policy is as good as the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from balancer.syntax.printable import with_digits
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import GRID, INK, ON_DARK, ON_LIGHT
from experiments.sweep.matrix import Matrix, Square

MARKS = {"best": "★", "equal": "≈", "undecided": "?", "behind": "", "no verdict": "", "bound": ""}
LEGEND = ("★ best", "≈ at most 5 % worse than it", "? may be the best or as good", "n % requests that failed")
SHADES = mpl.colormaps["cividis_r"]
DARKEST = 4.0
"""Ratio from which on all squares are equally dark."""

TICKS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
ROW, HEAD, FOOT = 0.34, 1.5, 0.75
"""Heights in inches: a policy, the scenario names, the scale."""

MAX_SCENARIOS_ABREAST = 18
"""Maximum number of scenarios side by side; more go below."""

SOME_FAILED = 0.001
"""Fraction of failed requests from which on a square shows it."""


@mpl.rc_context(STYLE)
def heat_map(matrix: Matrix, ours: str) -> Figure:
    """Ratios to the best policy, policies from best to worst, `ours` in bold."""
    strips = strips_of(matrix.scenarios, MAX_SCENARIOS_ABREAST)
    policies = matrix.ranked()
    height = len(strips) * (ROW * len(policies) + HEAD) + FOOT
    figure, panels = canvas.blank(height, rows=len(strips))
    norm = LogNorm(1.0, DARKEST, clip=True)
    for axes, scenarios in zip(panels, strips, strict=True):
        strip(axes, matrix, policies, scenarios, max(map(len, strips)), norm)
        embolden(axes, ours)
    explain(figure, panels, norm, matrix.measure)
    return figure


def explain(figure: Figure, panels: Sequence[Axes], norm: LogNorm, measure: str) -> None:
    """Add the colour scale below, and the legend of the marks."""
    shrink, aspect = 0.6, 45
    shades = mpl.cm.ScalarMappable(norm, SHADES)
    scale = figure.colorbar(
        shades, ax=list(panels), location="bottom", shrink=shrink, aspect=aspect, pad=0.01
    )
    scale.ax.xaxis.set_major_locator(FixedLocator(TICKS))
    scale.ax.xaxis.set_minor_locator(NullLocator())
    scale.ax.xaxis.set_major_formatter(FuncFormatter(tick))
    legend = "   ".join(LEGEND)
    scale.set_label(f"{measure} / best {measure} of the scenario\n{legend}", fontsize=9)


def strips_of(scenarios: Sequence[str], most: int) -> list[list[str]]:
    """Split scenarios into strips of nearly equal length; one empty strip without any."""
    count = max(1, math.ceil(len(scenarios) / most))
    size = math.ceil(len(scenarios) / count)
    return [list(scenarios[number * size : (number + 1) * size]) for number in range(count)]


def strip(
    axes: Axes, matrix: Matrix, policies: Sequence[str], scenarios: Sequence[str], width: int, norm: LogNorm
) -> None:
    """Draw some of the scenarios; all strips are `width` squares wide, so that squares have equal size."""
    for y, policy in enumerate(policies):
        for x, scenario in enumerate(scenarios):
            draw(axes, x, y, matrix.squares.get((policy, scenario)), norm, 8.5 if width <= 12 else 7.5)
    axes.set_xlim(0, width)
    axes.set_ylim(len(policies), 0)
    axes.set_xticks(
        [x + 0.5 for x in range(len(scenarios))],
        [fill(name, 22) for name in scenarios],
        rotation=40,
        ha="left",
        rotation_mode="anchor",
        fontsize=8.5,
    )
    axes.set_yticks(
        [y + 0.5 for y in range(len(policies))], [shortened(matrix.shown_name(name)) for name in policies]
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelcolor=INK)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def shortened(name: str) -> str:
    """Wrap a long name for labels."""
    return fill(name, 30)


def draw(axes: Axes, x: int, y: int, square: Square | None, norm: LogNorm, size: float) -> None:
    """Draw one square: shade, ratio and mark; pale with a dash where nothing could be compared."""
    ratio = square.ratio.ratio if square else math.nan
    shade = to_rgb(SHADES(norm(max(1.0, ratio))) if square else GRID)
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=shade, edgecolor="white", linewidth=1.2))
    text = f"{MARKS[square.mark]}{number(ratio)}" if square else "–"
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": ink_on(shade)}
    weight = "bold" if square and square.mark in ("best", "equal") else "normal"
    has_failures = square is not None and square.failed >= SOME_FAILED
    axes.text(x + 0.5, y + (0.36 if has_failures else 0.52), text, fontsize=size, weight=weight, **style)
    if square is not None and has_failures:
        axes.text(x + 0.5, y + 0.76, percent(square.failed), fontsize=size - 2, **style)


def ink_on(shade: Sequence[float]) -> str:
    """White or ink, whichever has more contrast by relative luminance (WCAG 2.2)."""
    luminance = sum(part * value**2.2 for part, value in zip((0.2126, 0.7152, 0.0722), shade, strict=False))
    return ON_DARK if luminance < 0.21 else ON_LIGHT


def tick(ratio: float, _: object) -> str:
    """Format a tick as `× 2`; the last one stands for all beyond."""
    return f"× {ratio:g}{'+' if ratio >= DARKEST else ''}"


def number(ratio: float) -> str:
    """Format a ratio as `1.04`, `12.3` or `140`."""
    return f"{ratio:.2f}" if ratio < 10 else f"{with_digits(ratio, 3)}"


def percent(part: float) -> str:
    """Format a fraction as `0.2 %` or `12 %`."""
    return f"{part * 100:.1f} %" if part < 0.1 else f"{part * 100:.0f} %"


def embolden(axes: Axes, ours: str) -> None:
    """Set the row label of `ours` in bold."""
    for label in axes.get_yticklabels():
        if label.get_text().replace("\n", " ").split(",")[0] == ours:
            label.set_fontweight("bold")
