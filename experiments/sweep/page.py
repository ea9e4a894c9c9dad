"""Report of a grid: the matrix as a heat map, in sentences and as tables.

A function of the input files alone. It writes, into one directory,

    matrix.html  matrix.json  matrix.csv  figures/matrix.png  figures/matrix.svg

and, with measured campaigns, figures/measured.png and figures/measured.svg.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments.errors import BadInputError
from experiments.platform.json_values import json_value
from experiments.platform.terminal import clock
from experiments.report.document import Document, Section
from experiments.report.drawings import Drawing, save_drawing
from experiments.report.exports import DataTable, write_parquet
from experiments.report.html import to_html
from experiments.report.pages import write
from experiments.sweep.bound import distance_table, distances
from experiments.sweep.catalogue import Catalogue, GridFacts, Row
from experiments.sweep.equality import chosen_grid
from experiments.sweep.figure import heat_map
from experiments.sweep.matrix import Matrix, Square, matrix_of
from experiments.sweep.overview import overview_table, standings
from experiments.sweep.sentences import has_no_verdict, headline, sentences
from experiments.sweep.tables import best_table, failure_table, matrix_table

CAPTION = (
    "Lighter is better. Each square is the ratio to the observed best policy of its scenario, over all seeds; policies "
    "are sorted by their mean ratio. Everything from × 4 on is equally dark."
)

MEASURED_CAPTION = "The same on real processes, over valid blocks. Fewer than eight give ratios and no mark."

WARNINGS = {
    "missing": "are missing: the sweep was stopped, and the same command goes on with them.",
    "failed": "failed; they stand below and are tried again by the same command.",
    "invalid": "are invalid by what their runs say, and are compared with nothing.",
}


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
    grid, row = facts.grid, matrix.row(facts.grid.ours)
    omitted = [f"{count} of {planned} cells {WARNINGS[name]}" for name, count in matrix.left_out.items()]
    return Document(
        title=f"{grid.name}: policy matrix",
        heading=grid.question or "Which policy is best under which scenario?",
        eyebrow=f"Steelyard sweep · {grid.name} · simulated",
        headline=headline(matrix, grid.ours),
        has_verdict=bool(row) and not has_no_verdict(row),
        warnings=[Section("Not all cells are in these figures", lines=omitted)],
        sections=sections,
    )


def matrix_sections(facts: GridFacts, matrix: Matrix, rows: Sequence[Row], figures: Path) -> list[Section]:
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
    """Lines of the page's method section."""
    grid = facts.grid
    knobs = "; ".join(f"{knob} = {', '.join(map(str, values))}" for knob, values in grid.knobs.items())
    return [
        f"{facts.planned} cells: {len(matrix.scenarios)} scenarios × {len(matrix.policies)} policies × "
        f"{len(grid.seeds)} seeds{', knobs ' + knobs if knobs else ''}{', short version' if grid.quick else ''}.",
        "Each cell is one simulated run; equal seeds mean equal arrivals and demand for all policies of a scenario.",
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
    """Table with a row per square."""
    ratios = ("ratio", "low", "high")
    facts = ("mark", "seeds", "failed", "goodput", "leads", "judged_by")
    columns = ("scenario", "policy", f"{matrix.measure}_seconds", *ratios, *facts)
    return DataTable("matrix", columns, [csv_row(square) for square in matrix.squares.values()])


def csv_row(square: Square) -> tuple[object, ...]:
    """Values of one square."""
    ratios = (square.ratio.ratio, square.ratio.low, square.ratio.high)
    facts = (square.mark, square.seeds, square.failed, square.goodput, square.leads, square.judged_by)
    return (square.scenario, square.policy, square.value, *ratios, *facts)
