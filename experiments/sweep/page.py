"""Report of a grid: the matrix as a heat map, in sentences and as tables.

A function of the input files alone. It writes, into one directory,

    matrix.html  matrix.json  matrix.csv  figures/matrix.png  figures/matrix.svg

and, with measured campaigns, figures/measured.png and figures/measured.svg.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from experiments.errors import BadInputError
from experiments.report.html import box, heading, page, picture_html, section, table_html, verdict_box
from experiments.report.markup import BREAK, Html, joined, listing
from experiments.report.pages import Drawing, save_drawing, write
from experiments.sweep.catalogue import Catalogue, GridFacts, Row
from experiments.sweep.equality import chosen_grid
from experiments.sweep.figure import heat_map
from experiments.sweep.matrix import Matrix, matrix_of
from experiments.sweep.sentences import has_no_verdict, headline, sentences
from experiments.sweep.tables import best_table, failure_table, matrix_table
from experiments.terminal import clock

CAPTION = (
    "Lighter is better. Each square is the ratio to the best policy of its scenario, over all seeds; policies are "
    "sorted by their mean ratio. Everything from × 4 on is equally dark."
)


MEASURED_CAPTION = "The same on real processes, over valid blocks. Fewer than eight give ratios and no mark."


def write_page(
    catalogue: Catalogue, grid: str | None, measure: str, directory: Path, measured: Matrix | None = None
) -> tuple[GridFacts, Matrix]:
    """Write every output. Raises `BadInputError` when nothing can be compared or written."""
    facts = chosen_grid(catalogue, grid)
    rows = catalogue.rows(facts.grid.name)
    matrix = matrix_of(rows, measure)
    if not matrix.squares:
        raise BadInputError(f"{catalogue.path}: no cell of {facts.grid.name!r} has a result to compare yet")
    draw = partial(heat_map, matrix, facts.grid.ours)
    try:
        picture = save_drawing(Drawing("matrix", "The policy matrix", CAPTION, draw), directory / "figures")
        body = [
            header(facts, matrix, rows),
            picture_html(picture),
            *(
                [section(f"Where {facts.grid.ours} stands", listing(lines))]
                if (lines := said(facts, matrix))
                else []
            ),
            *([] if measured is None else [measured_section(measured, facts.grid.ours, directory)]),
            *(
                section(table.title, table_html(table))
                for table in (best_table(matrix, facts.grid.ours), matrix_table(matrix), failure_table(rows))
                if table.rows
            ),
            section("Method", listing(method(facts, matrix))),
        ]
        write(directory / "matrix.html", page(f"{facts.grid.name}: policy matrix", body))
        write(directory / "matrix.json", to_json(facts, matrix, measured))
        write(directory / "matrix.csv", to_csv(matrix))
    except OSError as error:
        raise BadInputError(f"{directory}: the report cannot be written: {error.strerror}") from None
    return facts, matrix


def header(facts: GridFacts, matrix: Matrix, rows: Sequence[Row]) -> Html:
    """Page header with question, verdict, and warnings."""
    question = facts.grid.question or "Which policy is best under which scenario?"
    row = matrix.row(facts.grid.ours)
    lines = [f"{count} of {len(rows)} cells {WARNINGS[name]}" for name, count in matrix.left_out.items()]
    verdict = verdict_box(
        headline(matrix, facts.grid.ours), has_verdict=bool(row) and not has_no_verdict(row)
    )
    return joined(
        [
            heading(f"Steelyard sweep · {facts.grid.name} · simulated", question),
            BREAK,
            verdict,
            box("Not all cells are in these figures", lines),
        ]
    )


def measured_section(measured: Matrix, ours: str, directory: Path) -> Html:
    """Section with the matrix of the measured campaigns."""
    draw = partial(heat_map, measured, ours)
    title = "Measured on real processes"
    picture = save_drawing(Drawing("measured", title, MEASURED_CAPTION, draw), directory / "figures")
    lines = [headline(measured, ours, "blocks"), *sentences(measured, ours)]
    lines += [
        f"{count} runs are {kind} and compared with nothing." for kind, count in measured.left_out.items()
    ]
    return joined([picture_html(picture), listing(lines), table_html(matrix_table(measured))])


WARNINGS = {
    "missing": "are missing: the sweep was stopped, and the same command goes on with them.",
    "failed": "failed; they stand below and are tried again by the same command.",
    "invalid": "are invalid by what their runs say, and are compared with nothing.",
}


def said(facts: GridFacts, matrix: Matrix) -> list[str]:
    """Sentences about the policy that the grid names as its own."""
    return sentences(matrix, facts.grid.ours)


def method(facts: GridFacts, matrix: Matrix) -> list[str]:
    """Lines of the page's method section."""
    grid = facts.grid
    knobs = "; ".join(f"{knob} = {', '.join(map(str, values))}" for knob, values in grid.knobs.items())
    return [
        f"{facts.planned} cells: {len(matrix.scenarios)} scenarios × {len(matrix.policies)} policies × "
        f"{len(grid.seeds)} seeds{', knobs ' + knobs if knobs else ''}{', short version' if grid.quick else ''}.",
        "Each cell is one simulated run; equal seeds mean equal arrivals and demand for all policies of a scenario.",
        "Latency counts from the instant at which a request was due; a failure counts as slow as the deadline.",
        "The ratio is the geometric mean over seeds of policy / best, paired by seed, with Student's interval over "
        "the logarithms; what lies within ±5 % as a whole is practically equal; p-values are adjusted by Holm inside "
        "a scenario.",
        "The best of a scenario is chosen from the same seeds, which flatters it a little.",
        f"Computed in {clock(facts.seconds)} of all workers together, code {facts.code}, driver: {facts.machine}.",
        f"Command: {facts.command}",
    ]


def to_json(facts: GridFacts, matrix: Matrix, measured: Matrix | None) -> str:
    """The matrix as JSON: every square, the headline and the sentences."""
    content = {
        "grid": facts.grid.model_dump(mode="json"),
        "code": facts.code,
        "measure": matrix.measure,
        "headline": headline(matrix, facts.grid.ours),
        "sentences": said(facts, matrix),
        "left_out": dict(matrix.left_out),
        "squares": [asdict(square) for square in matrix.squares.values()],
        "measured": [] if measured is None else [asdict(square) for square in measured.squares.values()],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def to_csv(matrix: Matrix) -> str:
    """CSV with a line per square."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(
        ["scenario", "policy", f"{matrix.measure}_seconds", "ratio", "low", "high", "mark", "seeds", "failed"]
    )
    for square in matrix.squares.values():
        interval = square.ratio
        ratios = (interval.ratio, interval.low, interval.high)
        facts = (square.mark, square.seeds, square.failed)
        lines.writerow([square.scenario, square.policy, square.value, *ratios, *facts])
    return text.getvalue()
