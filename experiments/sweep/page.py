"""Report of a grid: the matrix as a heat map, in sentences and as tables.

A function of the input files alone. It writes, into one directory,

    matrix.html  matrix.json  matrix.csv  figures/matrix.png  figures/matrix.svg

and, with measured campaigns, figures/measured.png and figures/measured.svg.

The heat map's colour is the ratio on a log scale, from cividis, which is readable with colour blindness; every square
also carries its number, and a mark where the policy is as good as the best.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from balancer.syntax.printable import with_digits
from experiments.errors import BadInputError
from experiments.platform.json_values import json_value
from experiments.platform.terminal import clock
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.document import Document, Section, to_html
from experiments.report.drawings import Drawing, save_drawing
from experiments.report.exports import DataTable, write_parquet
from experiments.report.pages import write
from experiments.report.palette import GRID, INK, ON_DARK, ON_LIGHT, luminance
from experiments.sweep.catalogue import Catalogue, CellRow, GridFacts, chosen_grid
from experiments.sweep.matrix import Matrix, Square, matrix_of
from experiments.sweep.sentences import (
    distance_table,
    distances,
    headline,
    judged,
    omissions,
    overview_table,
    sentences,
    standings,
)
from experiments.sweep.tables import best_table, failure_table, matrix_table

CAPTION = (
    "Lighter is better. Each square is the ratio to the observed best policy of its scenario, over all seeds; policies "
    "are sorted by their mean ratio. Everything from × 4 on is equally dark."
)

MEASURED_CAPTION = "The same on real processes, over valid blocks. Fewer than eight give ratios and no mark."


def write_page(
    catalogue: Catalogue,
    grid: str | None,
    measure: str,
    directory: Path,
    measured: Matrix | None = None,
    parquet: bool = False,
) -> tuple[GridFacts, Matrix]:
    """Write every output. Raises `BadInputError` when nothing can be compared or written."""
    facts = chosen_grid(catalogue, grid)
    rows = catalogue.rows(facts.grid.name)
    matrix = matrix_of(rows, measure)
    if not matrix.squares:
        raise BadInputError(f"{catalogue.path}: no cell of {facts.grid.name!r} has a result to compare yet")
    try:
        sections = matrix_sections(facts, matrix, rows, directory / "figures")
        if measured is not None:
            sections.insert(2, measured_section(measured, facts.grid.ours, directory / "figures"))
        write(directory / "matrix.html", to_html(document_of(facts, matrix, len(rows), sections)))
        write(directory / "matrix.json", to_json(facts, matrix, measured))
        table = data_table(matrix)
        write(directory / "matrix.csv", table.csv)
        if parquet:
            write_parquet(table, directory)
    except OSError as error:
        raise BadInputError(f"{directory}: the report cannot be written: {error.strerror}") from None
    return facts, matrix


def document_of(facts: GridFacts, matrix: Matrix, planned: int, sections: Sequence[Section]) -> Document:
    """The page as a document, with `sections` below the headline and the warning about omitted cells."""
    grid, row = facts.grid, matrix.row(matrix.variant(facts.grid.ours))
    return Document(
        title=f"{grid.name}: policy matrix",
        heading=grid.question or "Which policy is best under which scenario?",
        eyebrow=f"Steelyard sweep · {grid.name} · simulated",
        headline=headline(matrix, grid.ours),
        has_verdict=bool(judged(row)),
        warnings=[Section("Not all cells are in these figures", lines=omissions(matrix.left_out, planned))],
        sections=sections,
    )


def matrix_sections(
    facts: GridFacts, matrix: Matrix, rows: Sequence[CellRow], figures: Path
) -> list[Section]:
    """Heat map, sentences, tables and method of the simulated matrix."""
    ours = facts.grid.ours
    drawing = Drawing("matrix", "The policy matrix", CAPTION, partial(heat_map, matrix, ours))
    tables = (
        overview_table(matrix),
        best_table(matrix, ours),
        distance_table(matrix),
        matrix_table(matrix),
        failure_table(rows),
    )
    return [
        Section(drawing.title, save_drawing(drawing, figures)),
        Section(f"Where {ours} stands", lines=sentences(matrix, ours)),
        *(Section(table.title, table=table) for table in tables if table.rows),
        Section("Method", lines=method(facts, matrix)),
    ]


def measured_section(measured: Matrix, ours: str, figures: Path) -> Section:
    """Heat map, sentences and table of the measured campaigns."""
    draw = partial(heat_map, measured, ours)
    drawing = Drawing("measured", "Measured on real processes", MEASURED_CAPTION, draw)
    lines = [headline(measured, ours, "blocks"), *sentences(measured, ours)]
    lines += [
        f"{count} runs are {kind} and compared with nothing." for kind, count in measured.left_out.items()
    ]
    return Section(drawing.title, save_drawing(drawing, figures), lines, matrix_table(measured))


def method(facts: GridFacts, matrix: Matrix) -> list[str]:
    grid = facts.grid
    knobs = "; ".join(f"{knob} = {', '.join(map(str, values))}" for knob, values in grid.knobs.items())
    return [
        f"{facts.planned} cells: {len(matrix.scenarios)} scenarios × {len(matrix.policies)} policies × "
        f"{len(grid.seeds)} seeds{', knobs ' + knobs if knobs else ''}{', short version' if grid.quick else ''}.",
        "Each cell is one simulated run; equal seeds mean equal arrivals and demand for all policies of a scenario. "
        "A recorded load is the same under every seed: marks hold for that record.",
        "Latency counts from the instant at which a request was due; a failure counts as slow as the deadline.",
        "The ratio is the geometric mean over seeds of policy / observed best, paired by seed. The best of a scenario "
        "is chosen from the same seeds, so marks and intervals are those of multiple comparisons with the best (Hsu), "
        "by Student's intervals over the logarithms that hold together with 95 % in a scenario.",
        f"Where {matrix.measure} is the deadline for the observed best in at least half of the seeds, the odds of a "
        "late or failed answer, (1 - goodput) / goodput, are compared in its place.",
        f"Computed in {clock(facts.seconds)} of all workers together, code {facts.code}, driver: {facts.machine}.",
        f"Command: {facts.command}",
    ]


def to_json(facts: GridFacts, matrix: Matrix, measured: Matrix | None) -> str:
    """The matrix as JSON: every square, the headline and the sentences."""
    content = {
        "grid": facts.grid,
        "code": facts.code,
        "measure": matrix.measure,
        "headline": headline(matrix, facts.grid.ours),
        "sentences": sentences(matrix, facts.grid.ours),
        "left_out": dict(matrix.left_out),
        "standings": standings(matrix),
        "distances": distances(matrix),
        "squares": [*matrix.squares.values()],
        "measured": [] if measured is None else [*measured.squares.values()],
    }
    return json.dumps(json_value(content), indent=1, ensure_ascii=False) + "\n"


def data_table(matrix: Matrix) -> DataTable:
    facts = ("mark", "seeds", "failed", "goodput", "leads", "judged_by")
    columns = ("scenario", "policy", f"{matrix.measure}_seconds", "ratio", "low", "high", *facts)
    rows = [
        (
            *(one.scenario, one.policy, one.value, one.ratio.ratio, one.ratio.low, one.ratio.high),
            *(getattr(one, fact) for fact in facts),
        )
        for one in matrix.squares.values()
    ]
    return DataTable("matrix", columns, rows)


MARKS = {"best": "★", "equal": "≈", "undecided": "?"}
LEGEND = ("★ best", "≈ at most 5 % worse than it", "? may be the best or as good", "n % requests that failed")
SHADES = mpl.colormaps["cividis_r"]
DARKEST_RATIO = 4.0
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
    norm = LogNorm(1.0, DARKEST_RATIO, clip=True)
    for axes, scenarios in zip(panels, strips, strict=True):
        strip(axes, matrix, policies, scenarios, max(map(len, strips)), norm)
        for label in axes.get_yticklabels():
            if label.get_text().replace("\n", " ").split(",")[0] == ours:
                label.set_fontweight("bold")
    explain(figure, panels, norm, matrix.measure)
    return figure


def explain(figure: Figure, panels: Sequence[Axes], norm: LogNorm, measure: str) -> None:
    """Add the colour scale below, and the legend of the marks."""
    shades = mpl.cm.ScalarMappable(norm, SHADES)
    scale = figure.colorbar(shades, ax=list(panels), location="bottom", shrink=0.6, aspect=45, pad=0.01)
    canvas.fixed_ticks(scale.ax.xaxis, TICKS, lambda at: f"× {at:g}{'+' if at >= DARKEST_RATIO else ''}")
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
    style: dict[str, Any] = {"rotation": 40, "ha": "left", "rotation_mode": "anchor", "fontsize": 8.5}
    axes.set_xticks([x + 0.5 for x in range(len(scenarios))], [fill(name, 22) for name in scenarios], **style)
    names = [fill(matrix.shown_name(policy), 30) for policy in policies]
    axes.set_yticks([y + 0.5 for y in range(len(policies))], names)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelcolor=INK)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def draw(axes: Axes, x: int, y: int, square: Square | None, norm: LogNorm, size: float) -> None:
    """Draw one square: shade, ratio and mark; pale with a dash where nothing could be compared."""
    ratio = square.ratio.ratio if square else math.nan
    shade = to_rgb(SHADES(norm(max(1.0, ratio))) if square else GRID)
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=shade, edgecolor="white", linewidth=1.2))
    text = "–"
    if square:
        shown = f"{ratio:.2f}" if ratio < 10 else with_digits(ratio, 3)
        text = f"{MARKS.get(square.mark, '')}{shown}"
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": ink_on(shade)}
    weight = "bold" if square and square.mark in ("best", "equal") else "normal"
    has_failures = square is not None and square.failed >= SOME_FAILED
    axes.text(x + 0.5, y + (0.36 if has_failures else 0.52), text, fontsize=size, weight=weight, **style)
    if square is not None and has_failures:
        digits = 1 if square.failed < 0.1 else 0
        axes.text(x + 0.5, y + 0.76, f"{100 * square.failed:.{digits}f} %", fontsize=size - 2, **style)


def ink_on(shade: Any) -> str:
    """White or ink, whichever has more contrast."""
    return ON_DARK if luminance(shade) < 0.21 else ON_LIGHT
